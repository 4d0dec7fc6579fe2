"""``[tool.fsdp-migrate]``: what it says is done, what it does not know is refused."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fsdp_migrate.cli import config
from tests.helpers.commandline import ROOT, Command

DOCUMENT = ROOT / "docs" / "configuration.md"
WRAPS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    return FSDP(model)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text(WRAPS)
    return tmp_path


def write(root: Path, text: str) -> Path:
    (root / "pyproject.toml").write_text(text)
    return root


def load(root: Path, table: str = "", *, rest: str = "") -> config.Config:
    return config.load(write(root, f"{rest}\n[tool.fsdp-migrate]\n{table}\n"))


def test_the_document_lists_every_key() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == config.KEYS


def test_the_documents_example_is_valid(tmp_path: Path) -> None:
    example = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    assert set(tomllib.loads(example[1])["tool"]["fsdp-migrate"]) == config.KEYS
    found = config.load(write(tmp_path, example[1]))
    assert str(found.target) == "2.8"
    assert found.line_length == 88
    assert found.rule_paths == (tmp_path / "tools/fsdp-rules",)


def test_without_a_table_the_defaults_hold(tmp_path: Path) -> None:
    assert config.load(tmp_path) == config.Config(tmp_path)
    assert config.load(write(tmp_path, "")) == config.Config(tmp_path)
    assert load(tmp_path) == config.Config(tmp_path)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("selct = []", "has no key 'selct'; did you mean 'select'?"),
        ("zzz = 1", "has no key 'zzz'; it has configs, exclude"),
        ("select = 'FSDP101'", "select must be a list of strings"),
        ("exclude = [1]", "exclude must be a list of strings"),
        ("rule-paths = {}", "rule-paths must be a list of strings"),
        ("line-length = '88'", "line-length must be a number of at least 40"),
        ("line-length = true", "line-length must be a number of at least 40"),
        ("line-length = 10", "line-length must be a number of at least 40"),
        ("target-torch = 'new'", "target-torch: 'new' is not a torch version"),
        ("target-torch = '2.1'", "target-torch: torch 2.1 has no FSDP2; the new code needs 2.6"),
    ],
)
def test_what_is_wrong_is_said_with_file_and_key(
    here: Path, run: Command, table: str, said: str
) -> None:
    write(here, f"[tool.fsdp-migrate]\n{table}\n")
    for command in ("check", "rewrite"):
        answer = run(command, ".")
        assert answer.code == 2
        assert said in answer.err
        assert answer.err.count("\n") == 1
    if "torch" not in table:
        assert "error: pyproject.toml: [tool.fsdp-migrate] " in answer.err
    assert (here / "a.py").read_text() == WRAPS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[project]\nname = \n", "pyproject.toml:2: is not TOML: Invalid value"),
        ("x = 'a\n", "pyproject.toml: is not TOML: Expected"),
        ("tool = 3\n[tool.x]\n", "pyproject.toml:2: is not TOML"),
        ("[tool]\nfsdp-migrate = 3\n", "pyproject.toml: [tool.fsdp-migrate] must be a table"),
    ],
)
def test_a_broken_pyproject_is_named_with_its_line(
    here: Path, run: Command, text: str, said: str
) -> None:
    write(here, text)
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert f"error: {said}" in answer.err
    assert (here / "a.py").read_text() == WRAPS


def test_an_undecodable_pyproject_is_named(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_bytes(b"# \xff\n")
    assert "error: pyproject.toml: is not TOML: it must be in UTF-8" in run("check", ".").err
    (here / "pyproject.toml").unlink()
    (here / "pyproject.toml").mkdir()
    assert run("check", ".").code == 1, "a directory of that name configures nothing"


@pytest.mark.parametrize("text", ["tool = 3\n", "project = 3\n", "[tool]\nruff = 1\nblack = []\n"])
def test_what_others_get_wrong_is_not_our_business(tmp_path: Path, text: str) -> None:
    assert config.load(write(tmp_path, text)) == config.Config(tmp_path)


def test_an_unknown_rule_code_is_an_error(here: Path, run: Command) -> None:
    write(here, "[tool.fsdp-migrate]\nignore = ['FSDP204', 'FSDP777']\n")
    answer = run("check", ".")
    assert answer.code == 2
    assert "[tool.fsdp-migrate]: no rule's code is or begins with 'FSDP777'" in answer.err


def test_codes_from_both_places(here: Path, run: Command) -> None:
    write(here, "[tool.fsdp-migrate]\nignore = ['FSDP1']\nselect = ['FSDP2']\n")
    assert "1 ignored" in run("check", ".").out
    assert "1 ignored" in run("check", "--select", "FSDP1", ".").out
    write(here, "[tool.fsdp-migrate]\nselect = ['FSDP2']\n")
    assert "FSDP101 [*]" in run("check", "--select", "FSDP1", ".").out


def test_excluded_files_are_not_read(here: Path, run: Command) -> None:
    write(here, "[tool.fsdp-migrate]\nexclude = ['/old/', '*_gen.py']\n")
    for name in ("old/b.py", "new/old/c.py", "x_gen.py"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(WRAPS)
    listed = re.findall(r" --> (\S+):5", run("check", ".").out)
    assert listed == ["a.py", "new/old/c.py"]
    assert "x_gen.py:5" in run("check", "x_gen.py").out, "what is named is read"


def test_a_missing_rule_directory_is_an_error(here: Path, run: Command) -> None:
    write(here, "[tool.fsdp-migrate]\nrule-paths = ['nowhere']\n")
    answer = run("check", ".")
    assert answer.code == 2
    assert "nowhere: no such directory of rules" in answer.err


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("[tool.ruff]\nline-length = 120\n", 120),
        ("[tool.black]\nline-length = 88\n", 88),
        ("[tool.ruff]\nline-length = 120\n[tool.fsdp-migrate]\nline-length = 79\n", 79),
        ("[tool.ruff]\nline-length = 'long'\n", 88),
        ("[tool.ruff.lint]\nselect = ['E']\n", 88),
        ("[tool.black]\n", 88),
        ("[tool.black]\ntarget-version = ['py311']\n[tool.ruff]\nline-length = 110\n", 110),
        ("[tool.ruff]\n[tool.black]\nline-length = 95\n", 95),
        ("[tool.isort]\nline_length = 79\n", 79),
        ("[tool.pytest.ini_options]\n", 100),
        ("[tool]\nblack = 1\nruff = []\nisort = 'x'\n", 100),
    ],
)
def test_the_line_length_is_the_formatters(tmp_path: Path, text: str, length: int) -> None:
    assert config.load(write(tmp_path, text)).line_length == length


# -- where it is read -----------------------------------------------------------------------------


def test_the_nearest_pyproject_up_to_the_repository(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fsdp-migrate]\nzzz = 1\n")
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    inner = repository / "pkg" / "sub"
    inner.mkdir(parents=True)
    assert config.load(inner).root == repository
    (repository / "pkg" / "pyproject.toml").write_text("[tool.fsdp-migrate]\nline-length = 50\n")
    assert config.load(inner).root == repository / "pkg"
    assert config.load(inner).line_length == 50


# -- the target -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("requirement", "target"),
    [
        ("torch", "2.7"),
        ("torch>=2.0", "2.7"),
        ("torch>=2.0,<3", "2.7"),
        ("torch~=2.1", "2.7"),
        ("torch>=2.9", "2.9"),
        ("torch>2.8.0", "2.8"),
        ("torch==2.9.1", "2.9"),
        ("torch == 2.9.*", "2.9"),
        ("torch~=2.9.1", "2.9"),
        ("torch<2.7", "2.6"),
        ("torch<=2.6.0", "2.6"),
        ("torch>=2.4,<2.7", "2.6"),
        ("torch==2.6.0+cu124; python_version > '3.9'", "2.6"),
        ("torch===nightly", "2.7"),
        ("torch @ https://example.invalid/torch.whl", "2.7"),
        ("torchvision==0.1", "2.7"),
        ("torch=2.1", "2.7"),
    ],
)
def test_the_target_is_what_the_project_requires(
    tmp_path: Path, requirement: str, target: str
) -> None:
    (tmp_path / "requirements.txt").write_text(f"numpy\n{requirement}  # why\n-r other.txt\n")
    assert str(config.load(tmp_path).target) == target
    (tmp_path / "requirements.txt").unlink()
    project = f'[project]\nname = "x"\ndependencies = ["{requirement}"]\n'
    assert str(config.load(write(tmp_path, project)).target) == target
    extra = f'[project]\nname = "x"\n[project.optional-dependencies]\na = ["{requirement}"]\n'
    assert str(config.load(write(tmp_path, extra)).target) == target


def test_words_go_before_requirements(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.9.0\n")
    assert load(tmp_path, "target-torch = '2.8'").target_from == "[tool.fsdp-migrate] target-torch"
    found = config.load(tmp_path, target="2.10.1")
    assert (str(found.target), found.target_from) == ("2.10", "--target-torch")


@pytest.mark.parametrize("release", ["2.4", "2.5.1"])
def test_before_the_public_fully_shard_sites_say_what_they_need(
    here: Path, run: Command, release: str
) -> None:
    answer = run("rewrite", "--target-torch", release, ".")
    assert "needs torch 2.6, the project's target is " + release[:3] in answer.out
    assert (here / "a.py").read_text() == WRAPS


def test_a_pin_and_a_low_bound_are_mentioned(here: Path, run: Command) -> None:
    (here / "requirements.txt").write_text("torch>=2.0\n")
    answer = run("rewrite", "--dry-run", ".")
    assert "FSDP501  rewrote  requirements.txt:1  torch>=2.0 -> torch>=2.7" in answer.err
    answer = run("check", ".")
    assert "note: requirements.txt allows torch>=2.0: the migrated code needs >=2.7" in answer.err
    answer = run("rewrite", "--dry-run", "--ignore", "FSDP501", ".")
    assert "note: requirements.txt allows torch>=2.0: the migrated code needs >=2.7" in answer.err
    (here / "requirements.txt").write_text("torch==2.1.2\n")
    answer = run("check", ".")
    assert "needs torch 2.6, the project's target is 2.1" in answer.out
    assert "note: requirements.txt asks for torch==2.1.2 and fully_shard needs 2.6" in answer.err
