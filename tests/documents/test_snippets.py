"""What pages show is read by what would run it, and run where that takes no training."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML
from typer.main import get_command

from fsdp_migrate.cli import config, parser
from tests.documents.snippets import PAGES, Snippet, commands, mentioned, of_page, snippets
from tests.helpers.commandline import DEMO, Command
from tests.helpers.migrating import migrate
from tests.tools.documents import GUIDE, ROOT, with_guide

LANGUAGES = {"", "diff", "json", "python", "sh", "text", "toml", "yaml"}
LATER = {"migrate", "verify"}  # they train; tests/test_demo.py runs what the pages start with


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example project, committed, as the working directory."""
    shutil.copytree(DEMO / "before", tmp_path / "demo")
    monkeypatch.chdir(tmp_path / "demo")
    monkeypatch.setenv("FSDP_MIGRATE_STATE", str(tmp_path / "state"))
    Path("pyproject.toml").write_text("")
    Path(".gitignore").write_text("fsdp.*\npr.md\n")
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm 1"):
        subprocess.run(["git", *words.split()], check=True)
    return Path.cwd()


# --- commands ------------------------------------------------------------------------------------


def read(words: list[str]) -> None:
    """Have the command line read a command, without carrying it out."""
    assert words[0] == "fsdp-migrate"
    program = get_command(parser.app)
    outer = typer.Context(program, info_name=parser.NAME, **program.context_settings)
    if words[1].startswith("-"):
        known = {name for param in program.params for name in param.opts}
        assert words[1] in known, words
        return
    command = program.commands[words[1]]  # type: ignore[attr-defined]
    command.make_context(words[1], words[2:], parent=outer)


def check(words: list[str]) -> None:
    """Whether a command of a page is one."""
    if words[0] == "fsdp-migrate":
        read(words)
    elif words[0] == "make":
        subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)
    elif words[:2] == ["pip", "install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in re.findall(r"\[(\w+)\]", " ".join(words)):
            assert extra in extras["optional-dependencies"]
    elif words[0].endswith("python"):
        assert words[1] == "-m"
        assert importlib.util.find_spec(words[2]), words
    else:
        assert words[0] in {"git"}, words


@pytest.mark.parametrize("snippet", snippets("sh"), ids=str)
def test_commands_are_read(snippet: Snippet) -> None:
    found = commands(snippet.text)
    assert found
    for words in found:
        check(words)


def test_commands_in_the_text_are_read() -> None:
    found = mentioned()
    assert len(found) > 10
    for _, words in found:
        if words[1] not in parser.COMMANDS or words[2:]:  # not the mere name of a command
            check(words)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/ci.md", "docs/agents.md"])
def test_commands_run_in_the_order_of_the_page(page: str, demo: Path, run: Command) -> None:
    """On the example project; what trains, and what needs more than is there, is read alone."""
    found = [w for s in of_page(ROOT / page) if s.language == "sh" for w in commands(s.text)]
    ours = [words[1:] for words in found if words[0] == "fsdp-migrate"]
    ran = 0
    for words in ours:
        if words[0] in LATER or "--review" in words or words[0].startswith("-"):
            continue
        if words[0] in {"rewrite", "undo"}:
            for command in ("checkout -q .", "clean -qf"):
                subprocess.run(["git", *command.split()], check=True)
        if words[0] == "undo":
            run("rewrite", ".")
        answer = run(*words)
        looks = words[0] == "check" or "--dry-run" in words
        assert answer.code in ({0, 1} if looks else {0}), (words, answer)
        ran += 1
    assert ran > 2


def test_the_screen_of_check_is_its_screen(demo: Path, run: Command) -> None:
    page = ROOT / "docs" / "index.md"
    first = next(s for s in of_page(page) if s.language == "text")
    said = run("check").out
    for part in first.text.strip().split("\n\n"):
        assert part in said


# --- code ----------------------------------------------------------------------------------------


def test_blocks_are_in_languages_that_are_looked_at() -> None:
    assert {s.language for page in PAGES for s in of_page(page)} <= LANGUAGES


@pytest.mark.parametrize("snippet", snippets("python"), ids=str)
def test_python_compiles(snippet: Snippet) -> None:
    ast.parse(snippet.text)


@pytest.mark.parametrize("snippet", snippets("json"), ids=str)
def test_json_is_json(snippet: Snippet) -> None:
    json.loads(snippet.text)


@pytest.mark.parametrize("snippet", snippets("toml"), ids=str)
def test_settings_are_taken(snippet: Snippet, tmp_path: Path) -> None:
    if "trust-rules" in snippet.text:  # the user's own file
        assert tomllib.loads(snippet.text).keys() == {"trust-rules"}
        return
    settings = tomllib.loads(snippet.text)["tool"]["fsdp-migrate"]
    for directory in settings.get("rule-paths", ()):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(snippet.text)
    config.load(tmp_path)


@pytest.mark.parametrize("snippet", snippets("yaml"), ids=str)
def test_workflows_and_hooks_are_ours(snippet: Snippet) -> None:
    load = YAML(typ="safe").load
    hooks = {hook["id"] for hook in load(ROOT / ".pre-commit-hooks.yaml")}
    inputs = load(ROOT / "action.yml")["inputs"]
    found = load(snippet.text)
    if isinstance(found, dict) and "repos" in found:
        assert {hook["id"] for repo in found["repos"] for hook in repo["hooks"]} <= hooks
        return
    jobs = found.get("jobs", {"": found}) if isinstance(found, dict) else {"": {"steps": found}}
    for step in (step for job in jobs.values() for step in job["steps"]):
        if "fsdp-migrate@" in step.get("uses", ""):
            assert set(step.get("with", ())) <= set(inputs)
        for words in commands(step.get("run", "").partition(">>")[0]):
            check(words)


def test_the_guide_shows_what_is_written() -> None:
    text = GUIDE.read_text(encoding="utf-8")
    assert text.count("After:\n") >= 5
    assert with_guide(text) == text


def test_what_decides_is_decided_so(tmp_path: Path, run: Command) -> None:
    page = ROOT / "docs" / "decides.md"
    code, said = (
        next(s.text for s in of_page(page) if s.language == n) for n in ("python", "text")
    )
    (tmp_path / "example.py").write_text(code)
    (tmp_path / "pyproject.toml").write_text("")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert run("check", "--format", "concise", ".").out == said


def test_a_rule_of_a_projects_own_works_as_shown(tmp_path: Path, run: Command) -> None:
    of = {s.language: s.text for s in of_page(ROOT / "docs" / "own-rules.md")}
    rule, settings, said = of["python"], of["toml"], of["text"]
    (tmp_path / "tools" / "fsdp-rules").mkdir(parents=True)
    (tmp_path / "tools" / "fsdp-rules" / "FSDP950_exporter.py").write_text(rule)
    (tmp_path / "pyproject.toml").write_text(settings)
    (tmp_path / "a.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from exporter import export_weights\n\n"
        "model = FSDP(net)\nexport_weights(model)\nexport_weights(net.head)\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        answer = run("check", "--trust-rules", ".")
        assert said in answer.out
        assert answer.out.count("FSDP950") == 1
        assert "Export from the whole state" in run("explain", "FSDP950").out


def test_nothing_of_fsdp1_is_left_in_the_guide() -> None:
    """What stands under After is done: a second run finds nothing in it."""
    after = re.findall(r"After:\n\n```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    for text in after:
        result, _ = migrate({"example.py": text})
        assert not result.decisions
