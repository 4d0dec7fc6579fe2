"""FSDP501: the torch that a migrated project requires, in every file that says so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.helpers.commandline import Command

WRAPS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model):
    return FSDP(model)
"""
LEFT = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapped(FSDP):
    def state_dict(self):
        return super().state_dict()
"""
PYPROJECT = """\
# torch>=2.0 is what we need
[project]
name = "trainer"  # "torch>=2.0"
description = "torch>=2.0"
dependencies = [
    'numpy>=1.20',   # first
    "torch>=2.0",    # the framework
    "torchvision>=0.15", "pytorch-lightning>=2.0",
]

[project.optional-dependencies]
gpu = ["torch>=2.0", "triton"]

[dependency-groups]
dev = [{include-group = "docs"}, "torch>=2.0.1"]

[tool.poetry.dependencies]
torch = {version = "^2.0", source = "torch"}  # here too

[build-system]
requires = ["torch>=2.0"]
"""
SETUP_CFG = """\
[metadata]
name = trainer
description = torch>=2.0

[options]
install_requires =
    numpy
    torch>=2.0 ; python_version > "3.8"

[options.extras_require]
gpu = torch>=2.1
all =
\ttorch >= 2.1
"""
SETUP_PY = """\
from setuptools import setup

TORCH = "torch>=2.0"
setup(
    name="trainer", description="torch>=2.0",
    install_requires=["numpy", 'torch>=2.0', TORCH],  # torch>=2.0
    extras_require={"é": ("torch>=2.0",), "x": TORCH},
)
"""
REQUIREMENTS = "-r base.txt\n# torch>=2.0\ntorch>=2.0  # pinned by hand\n\ntorch-geometric>=2.0\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(WRAPS)
    return tmp_path


def changed_lines(before: str, after: str) -> list[str]:
    pairs = zip(before.split("\n"), after.split("\n"), strict=True)
    return [new for old, new in pairs if old != new]


def test_pyproject(here: Path, run: Command) -> None:
    path = here / "pyproject.toml"
    path.write_text(PYPROJECT)
    answer = run("rewrite", ".")
    assert answer.code == 0, answer.err
    assert changed_lines(PYPROJECT, path.read_text()) == [
        '    "torch>=2.7",    # the framework',
        'gpu = ["torch>=2.7", "triton"]',
        'dev = [{include-group = "docs"}, "torch>=2.7.0"]',
        'torch = {version = "^2.7", source = "torch"}  # here too',
    ]
    assert "FSDP501  rewrote  pyproject.toml:7   torch>=2.0 -> torch>=2.7" in answer.out
    assert "FSDP501  rewrote  pyproject.toml:18  torch ^2.0 -> ^2.7" in answer.out
    run("undo")
    assert path.read_text() == PYPROJECT


def test_setup_files_and_requirements(here: Path, run: Command) -> None:
    files = {
        "setup.cfg": SETUP_CFG,
        "setup.py": SETUP_PY,
        "requirements.txt": REQUIREMENTS,
        "requirements-dev.txt": REQUIREMENTS,
        "requirements/base.txt": REQUIREMENTS,
        "notes.txt": REQUIREMENTS,
    }
    (here / "requirements").mkdir()
    for name, text in files.items():
        (here / name).write_bytes(text.encode())
    run("rewrite", ".")
    assert changed_lines(SETUP_CFG, (here / "setup.cfg").read_text()) == [
        '    torch>=2.7 ; python_version > "3.8"',
        "gpu = torch>=2.7",
        "\ttorch >= 2.7",
    ]
    assert changed_lines(SETUP_PY, (here / "setup.py").read_text()) == [
        'TORCH = "torch>=2.7"',
        "    install_requires=[\"numpy\", 'torch>=2.7', TORCH],  # torch>=2.0",
        '    extras_require={"é": ("torch>=2.7",), "x": TORCH},',
    ]
    for name in ("requirements.txt", "requirements-dev.txt", "requirements/base.txt"):
        assert changed_lines(REQUIREMENTS, (here / name).read_text()) == [
            "torch>=2.7  # pinned by hand"
        ]
    assert (here / "notes.txt").read_text() == REQUIREMENTS


@pytest.mark.parametrize(
    "data",
    [
        b"torch>=2.0\r\nnumpy\r\n",
        b"\xef\xbb\xbfnumpy\ntorch>=2.0",
        "# é\ntorch>=2.0  # ü\n".encode(),
        b"# \xff\n  torch>=2.0\t# x\n",
    ],
)
def test_every_other_byte_stays(here: Path, run: Command, data: bytes) -> None:
    (here / "requirements.txt").write_bytes(data)
    run("rewrite", ".")
    assert (here / "requirements.txt").read_bytes() == data.replace(b"2.0", b"2.7")


@pytest.mark.parametrize(
    "text",
    [
        "torch>=2.7\n",
        "torch>=2.9\n",
        "torch==2.9.1\n",
        "numpy\n",
        "pytorch>=1.0\ntorchdata>=0.1\ntorch_xla>=2.0\ntorch.geometric>=2.0\n",
    ],
)
def test_what_is_enough_stays_and_is_not_mentioned(here: Path, run: Command, text: str) -> None:
    (here / "requirements.txt").write_text(text)
    answer = run("rewrite", ".")
    assert (here / "requirements.txt").read_text() == text
    assert "FSDP501" not in answer.out + answer.err


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("requirements.txt", "torch==2.1.0\n", "it is pinned before torch 2.7"),
        ("requirements.txt", "torch>=2.0,<2.4\n", "it excludes torch 2.7"),
        ("requirements.txt", "torch>=2.0 --hash=sha256:00\n", "written by a tool"),
        ("requirements.txt", "torch>=2.0 \\\n    --hash=sha256:00\n", "written by a tool"),
        (
            "requirements.txt",
            "# This file is autogenerated by pip-compile\ntorch>=2.0\n",
            "written by a tool",
        ),
        ("pyproject.toml", '[project]\ndependencies = ["torch\\u003e=2.0"]\n', "spelled in a way"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "~2.1"\n', "form is not edited"),
    ],
)
def test_what_cannot_be_raised_is_left_with_the_reason(
    here: Path, run: Command, name: str, text: str, reason: str
) -> None:
    (here / name).write_text(text)
    answer = run("rewrite", ".", "--target-torch", "2.7")
    assert (here / name).read_text() == text
    assert answer.code == 0
    line = next(each for each in answer.out.splitlines() if "FSDP501" in each)
    assert f"left     {name}" in line
    assert reason in line
    assert "the new code needs torch>=2.7" in answer.out


@pytest.mark.parametrize(
    "text",
    [
        'setup(install_requires=[f"torch>={OLD}"])\n',
        'setup(install_requires=open("requirements.in").read().split())\n',
        'configure(install_requires=["torch>=2.0"])\n',
        'setup(description=["torch>=2.0"])\n',
        "def broken(:\n    'torch>=2.0'\n",
    ],
)
def test_computed_requirements_of_a_setup_py_stay(here: Path, run: Command, text: str) -> None:
    (here / "setup.py").write_text(text)
    run("rewrite", ".")
    assert (here / "setup.py").read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        'TORCH = "torch>=2.0"\nsetup(install_requires=[TORCH, "numpy"])\n',
        'TORCH: str = "torch>=2.0"\nsetup(extras_require={"gpu": [TORCH], "all": [TORCH]})\n',
        'needs = ["numpy", "torch>=2.0; sys_platform == \'linux\'"]\n'
        "setuptools.setup(install_requires=needs)\n",
        'needs = ["torch[opt]>=2.0"]\nsetup(install_requires=needs + ["numpy"])\n',
        'needs = ["numpy"]\nneeds += ["torch>=2.0"]\nsetup(install_requires=needs)\n',
        'needs = []\nif LINUX:\n    needs.append("torch>=2.0")\nsetup(install_requires=[*needs])\n',
        'needs = []\nneeds.extend(["torch>=2.0"])\nsetup(install_requires=list(needs))\n',
        'e = {}\ne["gpu"] = ["torch>=2.0"]\ne["all"] = e["gpu"] + ["x"]\nsetup(extras_require=e)\n',
        'core = ["torch>=2.0"]\nmore = core\nsetup(extras_require=dict(all=more))\n',
        'setup(install_requires="""\n    numpy\n    torch>=2.0\n""")\n',
        'T = "torch>=2.0" if LINUX else "torch>=2.0,<3"\nsetup(install_requires=[T])\n',
        'e = {"gpu": ["torch>=2.0"]}\ne["all"] = sum(e.values(), [])\nsetup(extras_require=e)\n',
        'e = {}\ne["gpu"] = ["torch>=2.0"]\ne["all"] = {d for ds in e.values() for d in ds}\n'
        "setup(extras_require=e)\n",
        'given = {"name": "torch", "install_requires": ["torch>=2.0"]}\nsetup(**given)\n',
        'setup(**dict(name="torch", extras_require={"gpu": ["torch>=2.0"]}))\n',
        'def main():\n    needs = ["torch>=2.0"]\n    setup(install_requires=needs)\n',
        '# é\r\nT = "torch>=2.0"  # torch\r\nsetup(install_requires=["é", T])\r\n',
    ],
)
def test_requirements_of_a_setup_py_in_variables_are_raised(
    here: Path, run: Command, text: str
) -> None:
    (here / "setup.py").write_bytes(text.encode())
    answer = run("rewrite", ".")
    assert (here / "setup.py").read_bytes() == text.replace(">=2.0", ">=2.7").encode()
    assert "FSDP501  rewrote  setup.py:" in answer.out
    assert "FSDP501  left" not in answer.out


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (
            'T = "torch>=2.0"\nprint(T)\nsetup(install_requires=[T])\n',
            1,
            "torch>=2.0: T is used for something else too",
        ),
        (
            'T = "torch>=2.0"\nneeds = [T]\nprint(needs)\nsetup(install_requires=needs)\n',
            1,
            "torch>=2.0: needs is used for something else too",
        ),
        (
            'def needs():\n    return ["numpy", "torch>=2.0"]\nsetup(install_requires=needs())\n',
            2,
            "torch>=2.0: it goes through code",
        ),
        ('setup(install_requires=[f"torch>={OLD}"])\n', 1, "torch>={OLD}: it is put together"),
        (
            'T = "torch>=2.0"\nsetup(install_requires=[T], extras_require={"o": [T + ",<2.3"]})\n',
            1,
            "torch>=2.0: it is put together",
        ),
        ('setup(install_requires=["torch>=2.0" + MORE])\n', 1, "torch>=2.0: it is put together"),
        ('T = "torch"\nT += ">=2.0"\nsetup(install_requires=[T])\n', 1, "torch: it is put"),
        (
            'all_ = ["torch>=2.0"]\nby = {n.split(">")[0]: n for n in all_}\n'
            "def deps(*names):\n    return [by[n] for n in names]\n"
            'setup(install_requires=deps("torch"))\n',
            1,
            "torch>=2.0: it goes through code",
        ),
        ('for T in ["torch"]:\n    T = "torch>=2.0"\nsetup(install_requires=[T])\n', 2, "put"),
        ('setup(install_requires=["torch" ">=2.0"])\n', 0, "spelled in a way that is not edited"),
    ],
)
def test_requirements_of_a_setup_py_that_are_not_only_that_are_left(
    here: Path, run: Command, text: str, line: int, reason: str
) -> None:
    (here / "setup.py").write_text(text)
    answer = run("rewrite", ".")
    assert (here / "setup.py").read_text() == text
    found = [each for each in answer.out.splitlines() if "FSDP501" in each]
    assert len(found) == 1
    assert f"left     setup.py{f':{line}' if line else ''}  " in found[0]
    assert reason in found[0]


@pytest.mark.parametrize(
    "text",
    [
        'T = "torch>=2.7"\nprint(T)\nsetup(install_requires=[T])\n',
        'T = "torchvision>=0.15"\nsetup(install_requires=[T])\n',
        'OTHER = "torch>=2.0"\nsetup(install_requires=["numpy"])\n',
        'def check(name="torch>=2.0"):\n    pass\nsetup(install_requires=["numpy"])\n',
        "setup(install_requires=needs())\n",
        'given = {"description": "torch>=2.0", **other}\nsetup(**given)\n',
        "a = dict(**a)\nsetup(**a)  # torch\n",
        "a = b\nb = a\nsetup(install_requires=a)  # torch\n",
    ],
)
def test_other_texts_of_a_setup_py_are_not_mentioned(here: Path, run: Command, text: str) -> None:
    (here / "setup.py").write_text(text)
    answer = run("rewrite", ".")
    assert (here / "setup.py").read_text() == text
    assert "FSDP501" not in answer.out + answer.err


def test_names_that_double_each_other_take_no_time(here: Path, run: Command) -> None:
    lines = ['n0 = ["torch>=2.0"]', *(f"n{i + 1} = n{i} + n{i}" for i in range(60))]
    (here / "setup.py").write_text("\n".join([*lines, "setup(install_requires=n60)"]))
    run("rewrite", ".")
    assert 'n0 = ["torch>=2.7"]' in (here / "setup.py").read_text()


def test_where_nothing_is_migrated_nothing_is_raised(here: Path, run: Command) -> None:
    for source in (LEFT, "import torch\n", WRAPS.replace("    return FSDP(model)", "    pass")):
        (here / "train.py").write_text(source)
        (here / "requirements.txt").write_text("torch>=2.0\n")
        run("rewrite", ".")
        assert (here / "requirements.txt").read_text() == "torch>=2.0\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--ignore", "FSDP501"),
        ("--ignore", "FSDP5"),
        ("--select", "FSDP1"),
        ("--target-torch", "2.6"),
    ],
)
def test_it_is_done_only_where_it_is_wanted(
    here: Path, run: Command, arguments: tuple[str, ...]
) -> None:
    (here / "requirements.txt").write_text("torch>=2.6\n")
    run("rewrite", ".", *arguments)
    assert "fully_shard" in (here / "train.py").read_text()
    assert (here / "requirements.txt").read_text() == "torch>=2.6\n"


def test_a_second_run_changes_nothing(here: Path, run: Command) -> None:
    (here / "requirements.txt").write_text("torch>=2.0\n")
    run("rewrite", ".")
    once = (here / "requirements.txt").read_text()
    answer = run("rewrite", ".")
    assert (here / "requirements.txt").read_text() == once
    assert "FSDP501" not in answer.out


def test_files_outside_of_the_paths_given_are_named(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2.0"]\n')
    (here / "src").mkdir()
    (here / "train.py").rename(here / "src" / "train.py")
    for given in ("src", "src/train.py"):
        answer = run("rewrite", "--dry-run", given)
        assert (
            "pyproject.toml:2  torch>=2.0: its file lies outside of the paths given" in answer.err
        )
        assert "+++ b/pyproject.toml" not in answer.out


def test_other_directories_are_not_looked_at(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text("")
    for name in ("one", "two"):
        (here / name).mkdir()
        (here / name / "requirements.txt").write_text("torch>=2.0\n")
    (here / "train.py").rename(here / "one" / "train.py")
    run("rewrite", ".")
    assert (here / "one" / "requirements.txt").read_text() == "torch>=2.7\n"
    assert (here / "two" / "requirements.txt").read_text() == "torch>=2.0\n"


def test_lock_files_are_named(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text('[project]\ndependencies = ["torch>=2.0"]\n')
    (here / "uv.lock").write_text('[[package]]\nname = "torch"\nversion = "2.1.0"\n')
    answer = run("rewrite", ".")
    assert "FSDP501  left     uv.lock" in answer.out
    assert "lock again with torch>=2.7" in answer.out
    assert '"2.1.0"' in (here / "uv.lock").read_text()


def test_the_dry_run_is_a_patch_with_it(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text(PYPROJECT)
    answer = run("rewrite", ".", "--dry-run")
    assert (here / "pyproject.toml").read_text() == PYPROJECT
    subprocess.run(["git", "init", "-q", "."], check=True)
    subprocess.run(["git", "apply", "-"], input=os.fsencode(answer.out), check=True)
    assert '"torch>=2.7",    # the framework' in (here / "pyproject.toml").read_text()


def test_a_link_out_of_the_project_is_not_followed(
    here: Path, run: Command, tmp_path_factory: pytest.TempPathFactory
) -> None:
    target = tmp_path_factory.mktemp("elsewhere") / "requirements.txt"
    target.write_text("torch>=2.0\n")
    (here / "requirements.txt").symlink_to(target)
    run("rewrite", ".")
    assert target.read_text() == "torch>=2.0\n"
    assert "fully_shard" in (here / "train.py").read_text()


def test_uncommitted_changes_stop_the_run(here: Path, run: Command) -> None:
    (here / "requirements.txt").write_text("torch>=1.9\n")
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "."), (*author, "commit", "-qm", "x")):
        subprocess.run(["git", *command], check=True)
    (here / "requirements.txt").write_text("torch>=2.0\n")
    answer = run("rewrite", ".")
    assert answer.code == 2
    assert "uncommitted changes in requirements.txt" in answer.err
    assert (here / "train.py").read_text() == WRAPS


def test_a_setup_py_with_fsdp1_in_it_is_changed_in_both(here: Path, run: Command) -> None:
    text = f"{WRAPS}\n\nsetup(install_requires=['torch>=2.0'])\n"
    (here / "setup.py").write_text(text)
    assert run("rewrite", ".").code == 0
    after = (here / "setup.py").read_text()
    assert "fully_shard(model)" in after
    assert "install_requires=['torch>=2.7']" in after
    run("undo")
    assert (here / "setup.py").read_text() == text


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_toml_in_odd_forms(here: Path, run: Command, end: str) -> None:
    lines = [
        "[project]",
        "dependencies = [",
        '  """torch>=2.0""",  # "torch>=2.0"',
        "  'torch>=2.0',",
        "  \"torch>=2.0; sys_platform == 'linux'\",",
        "]",
        "[tool.poetry.dependencies]",
        'torch = [{ version = "^2.0", python = "^3.9" }, { version = "1.13.1" }]',
        'numpy = "^2.0"',
    ]
    text = end.join(lines) + end
    (here / "pyproject.toml").write_bytes(text.encode())
    answer = run("rewrite", ".", "--target-torch", "2.7")
    new = (here / "pyproject.toml").read_bytes().decode().split(end)
    assert new[2] == '  """torch>=2.7""",  # "torch>=2.0"'
    assert new[3] == "  'torch>=2.7',"
    assert new[4] == "  \"torch>=2.7; sys_platform == 'linux'\","
    assert new[7] == 'torch = [{ version = "^2.7", python = "^3.9" }, { version = "1.13.1" }]'
    assert new[8] == 'numpy = "^2.0"'
    assert "torch 1.13.1: it is pinned before torch 2.7" in answer.out


# -- other files that are named -------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        *("-r deps/core.in", "-rdeps/core.in", "--requirement deps/core.in", "-c deps/core.in"),
        *("--requirement=deps/core.in", "--constraint deps/core.in  # why", "-c 'deps/core.in'"),
        *("-r ./deps/../deps/core.in", "\ufeff-r deps/core.in"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_file_that_requirements_name_is_raised(
    here: Path, run: Command, line: str, end: str
) -> None:
    (here / "deps").mkdir()
    (here / "requirements.txt").write_bytes(f"{line}{end}".encode())
    core = f"# torch>=2.0{end}torch>=2.0,<3 ; sys_platform == 'linux'  # x{end}torchvision{end}"
    (here / "deps" / "core.in").write_bytes(core.encode())
    answer = run("rewrite", ".")
    expected = core.replace("torch>=2.0,", "torch>=2.7,")
    assert (here / "deps" / "core.in").read_bytes() == expected.encode()
    assert (here / "requirements.txt").read_bytes() == f"{line}{end}".encode()
    assert "FSDP501  rewrote  deps/core.in:2" in answer.out
    run("undo")
    assert (here / "deps" / "core.in").read_bytes() == core.encode()


def test_a_link_to_another_of_the_files_is_read_once(here: Path, run: Command) -> None:
    (here / "requirements").mkdir()
    (here / "requirements" / "base.txt").write_text("torch>=2.0\n")
    (here / "requirements.txt").symlink_to("requirements/base.txt")
    answer = run("rewrite", ".")
    assert (here / "requirements" / "base.txt").read_text() == "torch>=2.7\n"
    assert (here / "requirements.txt").is_symlink()
    assert answer.out.count("FSDP501") == 1


def test_what_a_file_is_compiled_from_is_raised(here: Path, run: Command) -> None:
    (here / "requirements.in").write_text("torch>=2.0\n")
    compiled = "# This file is autogenerated by pip-compile\ntorch==2.1.0\n    # via -r x.in\n"
    (here / "requirements.txt").write_text(compiled)
    answer = run("rewrite", ".", "--target-torch", "2.7")
    assert (here / "requirements.in").read_text() == "torch>=2.7\n"
    assert (here / "requirements.txt").read_text() == compiled
    assert "torch==2.1.0: it was written by a tool, and is not edited" in answer.out


def test_files_are_named_from_where_they_are_named_and_read_once(here: Path, run: Command) -> None:
    files = {
        "requirements.txt": "-r deps/a.in\n-r deps/a.in\n-c requirements.txt\n",
        "deps/a.in": "-r b.in\n-r ../requirements.txt\ntorch>=2.0\n",
        "deps/b.in": "-r a.in\n-r b.in\ntorch>=2.1\n",
        "deps/c.in": "torch>=2.0\n",
        "b.in": "torch>=2.0\n",
    }
    (here / "deps").mkdir()
    for name, text in files.items():
        (here / name).write_text(text)
    answer = run("rewrite", ".")
    after = {name: (here / name).read_text() for name in files}
    assert after == {
        **files,
        "deps/a.in": files["deps/a.in"].replace("2.0", "2.7"),
        "deps/b.in": files["deps/b.in"].replace("2.1", "2.7"),
    }
    assert answer.out.count("FSDP501") == 2
    assert "3 files changed" in answer.out


def test_a_pin_in_a_file_that_is_named_decides_the_target(here: Path, run: Command) -> None:
    (here / "requirements.txt").write_text("torch>=2.0\n-c versions.in\n")
    (here / "versions.in").write_text("torch==2.9.1\n")
    answer = run("check", ".")
    assert "note: versions.in asks for torch==2.9.1" in answer.err
    run("rewrite", ".")
    assert (here / "requirements.txt").read_text() == "torch>=2.9\n-c versions.in\n"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-r missing.txt", "missing.txt: it is not there"),
        ("-c https://example.org/constraints.txt", "it is an address, and not read"),
        ("-r file:///etc/constraints.txt", "it is an address, and not read"),
        ("-r ../outside.txt", "../outside.txt: it lies outside of the project"),
        ("-r /etc/hosts", "/etc/hosts: it lies outside of the project"),
        ("-r ${WHERE}/x.txt", "its name is not written out"),
        ("-r deps", "deps: it is no file"),
        ("-r é.txt", "é.txt: it is not there"),
        (f"-r {'x' * 5000}", "it is no name of a file"),
        ("-r a\0b", "it is no name of a file"),
    ],
)
def test_a_named_file_that_is_not_read_is_told(
    here: Path, run: Command, line: str, reason: str
) -> None:
    top = here / "project"
    (top / "deps").mkdir(parents=True)
    (top / "pyproject.toml").write_text("")
    (here / "outside.txt").write_text("torch>=2.0\n")
    (here / "train.py").rename(top / "train.py")
    (top / "requirements.txt").write_text(f"torch>=2.0\n{line}\n")
    answer = run("rewrite", "project")
    assert (here / "outside.txt").read_text() == "torch>=2.0\n"
    assert (top / "requirements.txt").read_text() == f"torch>=2.7\n{line}\n"
    (found,) = [each for each in answer.out.splitlines() if "  left     project/req" in each]
    assert "FSDP501  left     project/requirements.txt:2  " in found
    assert reason in found
    assert "what it says of torch is not known" in found


def test_a_named_file_outside_of_the_paths_given_is_read_and_not_edited(
    here: Path, run: Command
) -> None:
    (here / "pyproject.toml").write_text("")
    (here / "core.in").write_text("torch>=2.0\n")
    (here / "src").mkdir()
    (here / "src" / "requirements.txt").write_text("-r ../core.in\n")
    (here / "train.py").rename(here / "src" / "train.py")
    answer = run("rewrite", "src")
    assert "core.in:1  torch>=2.0: its file lies outside of the paths given" in answer.out
    assert (here / "core.in").read_text() == "torch>=2.0\n"


def test_setuptools_may_name_files(here: Path, run: Command) -> None:
    dynamic = """\
[project]
name = "x"
dynamic = ["dependencies", "optional-dependencies"]
[tool.setuptools.dynamic]
dependencies = {file = ["a.in", "none.in"]}
optional-dependencies.gpu = {file = "b.in"}
"""
    (here / "pyproject.toml").write_text(dynamic)
    (here / "setup.cfg").write_text("[options]\ninstall_requires = file: c.in, d.in\n")
    for name in "abcd":
        (here / f"{name}.in").write_text("torch>=2.0\n")
    answer = run("rewrite", ".")
    assert {(here / f"{name}.in").read_text() for name in "abcd"} == {"torch>=2.7\n"}
    assert (here / "pyproject.toml").read_text() == dynamic
    assert "left     pyproject.toml:5  none.in: it is not there" in answer.out


# -- tools ----------------------------------------------------------------------------------------

TOOLS = """\
[dependency-groups]
dev = ["torch>=2.0", {include-group = "lint"}]  # torch>=2.0

[tool.uv]
constraint-dependencies = ["torch>=2.1"]
override-dependencies = ["torch>=2.0,<3", "torchvision>=0.1"]

[tool.pdm.dev-dependencies]
test = ["torch>=2.2; sys_platform == 'linux'", "-e file:///torch"]

[tool.pdm.resolution.overrides]
torch = ">=2.3"

[tool.hatch.envs.default]
dependencies = ["torch[opt]>=2.0"]
extra-dependencies = ['torch>=2.4']

[tool.tox.env_run_base]
deps = ["torch>=2.5"]

[tool.other]
dependencies = ["torch>=2.0"]
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_tables_of_tools(here: Path, run: Command, end: str) -> None:
    (here / "pyproject.toml").write_bytes(TOOLS.replace("\n", end).encode())
    run("rewrite", ".")
    assert changed_lines(
        TOOLS.replace("\n", end), (here / "pyproject.toml").read_bytes().decode()
    ) == [
        each + end.strip("\n")
        for each in (
            'dev = ["torch>=2.7", {include-group = "lint"}]  # torch>=2.0',
            'constraint-dependencies = ["torch>=2.7"]',
            'override-dependencies = ["torch>=2.7,<3", "torchvision>=0.1"]',
            'test = ["torch>=2.7; sys_platform == \'linux\'", "-e file:///torch"]',
            'torch = ">=2.7"',
            'dependencies = ["torch[opt]>=2.7"]',
            "extra-dependencies = ['torch>=2.7']",
            'deps = ["torch>=2.7"]',
        )
    ]


@pytest.mark.parametrize(
    "text",
    [
        '[tool.uv]\nconstraint-dependencies = "torch>=2.0"\n',
        '[tool.uv]\nconstraint-dependencies = ["torch>=2.7", "torchaudio==2.0"]\n',
        '[tool.pdm]\ndev-dependencies = ["torch>=2.0"]\n',
        '[tool.hatch]\nenvs = ["torch>=2.0"]\n',
        '[tool.hatch.envs.a]\ndependencies = ["torch==2.9.1"]\n',
        '[dependency-groups]\ndev = [{include-group = "torch>=2.0"}]\n',
    ],
)
def test_tables_of_tools_that_are_right_or_odd_stay(here: Path, run: Command, text: str) -> None:
    (here / "pyproject.toml").write_text(text)
    answer = run("rewrite", ".")
    assert (here / "pyproject.toml").read_text() == text
    assert "FSDP501" not in answer.out + answer.err


def test_tox_is_named_and_its_files_are_raised(here: Path, run: Command) -> None:
    text = """\
[testenv]
description = torch>=2.0
deps =
    numpy
    torch>=2.0  # the framework
    py{39,310}-old: torch==1.13
    torch
    py311: torch>=2.9
    -r{toxinidir}/core.in
    -c {env:CONSTRAINTS}
commands = torch>=2.0
"""
    (here / "tox.ini").write_text(text)
    (here / "core.in").write_text("torch>=2.0\n")
    answer = run("rewrite", ".")
    assert (here / "tox.ini").read_text() == text
    assert (here / "core.in").read_text() == "torch>=2.7\n"
    lines = [each.strip() for each in answer.out.splitlines() if "tox.ini" in each]
    assert [line.partition("left     ")[2] for line in lines] == [
        "tox.ini:10  {env:CONSTRAINTS}: its name is not written out; what it says of torch is not"
        " known",
        "tox.ini:5   torch>=2.0: requirements of tox are not edited",
        "tox.ini:6   torch==1.13: requirements of tox are not edited",
    ]


def test_environments_of_tests_do_not_decide_the_target(here: Path, run: Command) -> None:
    (here / "pyproject.toml").write_text(
        '[tool.hatch.envs.old]\ndependencies = ["torch==2.1.0"]\n'
        '[tool.tox.env.old]\ndeps = ["torch==2.1.0"]\n'
    )
    (here / "tox.ini").write_text("[testenv]\ndeps = torch==2.1.0\n")
    answer = run("rewrite", ".")
    assert "fully_shard" in (here / "train.py").read_text()
    assert answer.out.count("it is pinned before torch 2.7") == 2


# -- what is counted ------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", ["", "from setuptools import setup\nsetup()\n"])
def test_files_without_torch_are_not_changed_and_not_counted(
    here: Path, run: Command, setup: str
) -> None:
    files = {
        "requirements.txt": "numpy\r\n-r more.in\r\ntorchvision>=0.15 --hash=sha256:00\r\n",
        "more.in": "numpy  # torch>=2.0\n",
        "pyproject.toml": '[project]\nname = "torch"\ndependencies = ["numpy"]\n',
        "tox.ini": "[testenv]\ndeps = pytest\n",
        "setup.cfg": "[metadata]\nname = torch\n",
        "setup.py": setup,
        "other.py": "import torch\n",
    }
    for name, text in files.items():
        (here / name).write_bytes(text.encode())
    answer = run("rewrite", ".")
    assert answer.code == 0
    assert {name: (here / name).read_bytes().decode() for name in files} == files
    assert "1 file changed, 2 untouched" in answer.out
    assert "FSDP501" not in answer.out + answer.err


@pytest.mark.parametrize("wraps", ["", WRAPS])
def test_a_setup_py_counts_among_the_files_of_code(here: Path, run: Command, wraps: str) -> None:
    (here / "setup.py").write_text(f"{wraps}setup(install_requires=['torch>=2.0'])\n")
    (here / "requirements.txt").write_text("torch>=2.0\n")
    (here / "other.py").write_text("import torch\n")
    answer = run("rewrite", ".")
    assert "3 files changed, 1 untouched" in answer.out


LOADING = """\
import torch


def resume(path):
    return torch.load(path, map_location="cpu")


def weights(path, **more):
    return torch.load(path, weights_only=True), torch.load(path, **more), self.torch.load(path)
"""


@pytest.mark.parametrize("pin", ["torch>=2.0", "torch==2.5.1", "torch"])
def test_loads_that_give_weights_alone_are_named(here: Path, run: Command, pin: str) -> None:
    (here / "requirements.txt").write_text(f"{pin}\n")
    (here / "resume.py").write_text(LOADING)
    answer = run("rewrite", ".", "--target-torch", "2.7")
    assert "Since torch 2.6 torch.load gives nothing but weights" in answer.out
    assert "see resume.py:5\n" in answer.out
    assert (here / "resume.py").read_text() == LOADING


def test_loads_of_a_torch_that_did_the_same_are_not_named(here: Path, run: Command) -> None:
    (here / "requirements.txt").write_text("torch>=2.6\n")
    (here / "resume.py").write_text(LOADING)
    assert "weights" not in run("rewrite", ".").out


def test_loads_in_files_of_the_migrated_model_are_named_first(here: Path, run: Command) -> None:
    (here / "requirements.txt").write_text("torch>=2.0\n")
    (here / "a_converter.py").write_text(LOADING)
    (here / "b_resume.py").write_text(f"{LOADING}\n\ndef optimizer(path):\n    torch.load(path)\n")
    train = (here / "train.py").read_text()
    (here / "train.py").write_text(f"{train}\n\n{LOADING}")
    answer = run("rewrite", ".", "--target-torch", "2.7")
    line = len((here / "train.py").read_text().split("return torch.load")[0].splitlines())
    assert f"see train.py:{line}, b_resume.py:5, b_resume.py:13 and 1 more" in answer.out


INSTALLS = {
    "setup.sh": ("pip install torch==2.5.0 torchvision==0.20.0", "setup.sh:1", "torch==2.5.0"),
    "scripts/env.slurm": ("\n  pip install 'torch<2.6'\n", "scripts/env.slurm:2", "torch<2.6"),
    "README.md": ("Run `pip install torch==2.4`.", "README.md:1", "torch==2.4"),
    "cog.yaml": ('    - "torch==2.4.0"\n', "cog.yaml:1", "torch==2.4.0"),
    "environment.yml": ("dependencies:\n  - pytorch=2.2.1\n", "environment.yml:2", "pytorch=2.2.1"),
    "Dockerfile": (
        "FROM pytorch/pytorch:2.1.0-cuda12.1\n",
        "Dockerfile:1",
        "pytorch/pytorch:2.1.0",
    ),
    ".github/workflows/ci.yml": (
        "- run: pip install torchaudio==2.5.1\n",
        ".github/workflows/ci.yml:1",
        "torchaudio==2.5.1",
    ),
    "a.ipynb": (
        '{"cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "source": [\n'
        '"!pip install torch==2.1.0\\n"\n]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
        "a.ipynb:2",
        "torch==2.1.0",
    ),
    "requirements.txt": (
        "https://example.org/whl/torch-2.1.2%2Bcu118-cp310-cp310-linux_x86_64.whl\n",
        "requirements.txt:1",
        "torch-2.1.2",
    ),
    "docker/Dockerfile": (
        "ARG PYTORCH_VERSION=2.1.2\nFROM base:$PYTORCH_VERSION\n",
        "docker/Dockerfile:1",
        "PYTORCH_VERSION=2.1.2",
    ),
    "docker/rocm.Dockerfile": (
        "FROM rocm/pytorch:rocm6.0_ubuntu22.04_py3.9_pytorch_2.1.1\n",
        "docker/rocm.Dockerfile:1",
        "rocm/pytorch:rocm6.0_ubuntu22.04_py3.9_pytorch_2.1.1",
    ),
    "Dockerfile.mcli": (
        "FROM mosaicml/pytorch:2.1.0_cu121-python3.10-ubuntu20.04\n",
        "Dockerfile.mcli:1",
        "mosaicml/pytorch:2.1.0",
    ),
    "k8s/job.yaml": (
        "containers:\n  - name: t\n    image: pytorch/pytorch:2.0.1-cuda11.7\n",
        "k8s/job.yaml:3",
        "pytorch/pytorch:2.0.1",
    ),
    "gpu_environment.yaml": ("- pytorch::pytorch=2.0\n", "gpu_environment.yaml:1", "pytorch=2.0"),
}
SAGEMAKER = "from sagemaker.pytorch import PyTorch\n"
STARTED = {
    "an estimator": (
        f"{SAGEMAKER}job = PyTorch(\n"
        '    entry_point="train.py",\n    framework_version="2.0.1",\n    py_version="py310",\n)\n',
        4,
        'framework_version="2.0.1"',
    ),
    "a release in a variable": (
        f'{SAGEMAKER}TORCH = "2.0"\njob = PyTorch(framework_version=TORCH, source_dir="src")\n',
        3,
        'framework_version="2.0"',
    ),
    "arguments in a dictionary": (
        f'{SAGEMAKER}a = dict(\n    framework_version="2.1",\n)\njob = PyTorch(role, **a)\n',
        3,
        'framework_version="2.1"',
    ),
    "another library's estimator": (
        "from sagemaker.huggingface import HuggingFace\n"
        'HuggingFace(transformers_version="4.28", pytorch_version="2.0.0", role=role)\n',
        2,
        'pytorch_version="2.0.0"',
    ),
    "an image by its parts": (
        "from sagemaker import image_uris\n"
        'image_uris.retrieve(framework="pytorch", version="2.0.1", image_scope="training")\n',
        2,
        'version="2.0.1"',
    ),
    "an image by its name": (
        'URI = f"{account}.dkr"\nE = Estimator(image_uri="763.dkr.ecr.us-east-1.amazonaws.com/"\n'
        '    "pytorch-training:2.0.1-gpu-py310-cu118-ubuntu20.04-sagemaker")\n',
        2,
        "763.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.1",
    ),
    "an image of Azure": (
        'command(environment="AzureML-acpt-pytorch-2.0-cuda11.7@latest")\n',
        1,
        "acpt-pytorch-2.0",
    ),
    "an image of Vertex": (
        'Job(container_uri="us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-0:latest")\n',
        1,
        "/training/pytorch-gpu.2-0",
    ),
    "Modal": (
        "import modal\nimage = modal.Image.debian_slim().pip_install(\n"
        '    "numpy",\n    "torch==2.0.1+cu118",\n)\n',
        4,
        "torch==2.0.1",
    ),
    "a registry in Modal": (
        'import modal\nI = modal.Image.from_registry("pytorch/pytorch:2.1.0-cuda12.1-devel")\n',
        2,
        "pytorch/pytorch:2.1.0",
    ),
    "Ray": (
        'import ray\nray.init(runtime_env={"pip": ["torch==2.0.1"]})\n',
        2,
        "torch==2.0.1",
    ),
    "a list in a variable": (
        'PACKAGES = ["numpy", "torch~=2.1.0"]\nimage = image.pip_install(*PACKAGES)\n',
        1,
        "torch~=2.1.0",
    ),
    "Metaflow": (
        '@pypi(python="3.10", packages={"numpy": "1.26", "torch": "2.1.0"})\ndef step(): ...\n',
        1,
        "torch==2.1.0",
    ),
    "a command": (
        'SETUP = """\nset -e\npip install -U torch==2.1.0 numpy\n"""\nTask(setup=SETUP)\n',
        3,
        "torch==2.1.0",
    ),
}
NOT_STARTED = {
    "a docstring": '"""Tested with torch==2.0.1: pip install torch==2.0.1."""\n',
    "a comment": '# PyTorch(framework_version="2.0.1"), pip_install("torch==2.0.1")\n',
    "what is said": 'print("pip install torch==2.0.1")\nraise Error("pip install torch==2.0")\n',
    "a comparison": 'assert needed == "torch==2.0.1"\nif "torch==2.0" == needed: pass\n',
    "a newer torch": f'{SAGEMAKER}PyTorch(framework_version="2.7.1", entry_point="train.py")\n',
    "no PyTorch": 'TensorFlow(framework_version="2.0.1")\nSKLearn(framework_version="1.2-1")\n',
    "a model that is served": f'{SAGEMAKER}PyTorchModel(framework_version="2.0.1", role=role)\n',
    "an image to serve": 'image_uris.retrieve("pytorch", version="2.0", image_scope="inference")\n',
    "another framework": 'image_uris.retrieve("xgboost", version="1.5-1")\n',
    "a lower bound": 'image.pip_install("torch>=2.0", "torch-geometric==2.0", "torch==2.*")\n',
    "a release that is not known": 'PyTorch(framework_version=release(), entry_point="train.py")\n',
    "two values": 'V = "2.0"\nV = "2.8"\nPyTorch(framework_version=V, entry_point="train.py")\n',
    "a table of something else": 'record(versions={"torch": "2.0.1"})\n',
}


COMPANIONS = {
    "requirements.txt": ("peft\ntriton==2.1.0\n", 2, "triton==2.1.0", "2.1"),
    "requirements-dev.txt": ("torchvision==0.16.2\n", 1, "torchvision==0.16.2", "2.1"),
    "README.md": ("`pip install torchvision==0.20.1`\n", 1, "torchvision==0.20.1", "2.5"),
    "environment.yml": ("- pip:\n  - triton==3.2.0\n", 2, "triton==3.2.0", "2.6"),
}


@pytest.mark.parametrize("name", COMPANIONS)
def test_what_goes_with_an_older_torch_is_named(here: Path, run: Command, name: str) -> None:
    text, line, said, release = COMPANIONS[name]
    (here / name).write_text(text)
    answer = run("rewrite", ".")
    assert f"{name}:{line}  {said}: it goes with torch {release} alone, too old a one" in answer.out
    assert (here / name).read_text() == text


def test_torchaudio_has_the_release_of_torch_in_requirements_as_well(
    here: Path, run: Command
) -> None:
    (here / "requirements.txt").write_text("torchaudio==2.1.0\n")
    assert "torchaudio==2.1.0: it installs a torch that is too old" in run("rewrite", ".").out


@pytest.mark.parametrize("name", INSTALLS)
def test_what_installs_an_older_torch_is_named(here: Path, run: Command, name: str) -> None:
    text, place, said = INSTALLS[name]
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_text(text)
    answer = run("rewrite", ".")
    assert f"{place}  {said}: it installs a torch that is too old" in answer.out
    assert "the new code needs torch>=2.7" in answer.out
    assert (here / name).read_text() == text


@pytest.mark.parametrize("name", STARTED)
@pytest.mark.parametrize("in_notebook", [False, True], ids=["file", "notebook"])
def test_an_older_torch_that_a_program_starts_others_with_is_named(
    here: Path, run: Command, name: str, in_notebook: bool
) -> None:
    text, line, said = STARTED[name]
    file = "launch.py"
    if in_notebook:
        cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
        cell["source"] = ["!pip install torch==2.9\n", *text.splitlines(keepends=True)]
        known = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        text = json.dumps(known, indent=1)
        file = "launch.ipynb"
        line += text[: text.index("!pip")].count("\n") + 1
    (here / file).write_text(text)
    answer = run("rewrite", ".")
    assert f"{file}:{line}  {said}: it installs a torch that is too old" in answer.out
    assert answer.out.count("it installs a torch") == 1
    assert (here / file).read_text() == text


@pytest.mark.parametrize("name", NOT_STARTED)
def test_what_only_speaks_of_an_older_torch_is_not_named(
    here: Path, run: Command, name: str
) -> None:
    (here / "launch.py").write_text(NOT_STARTED[name])
    answer = run("rewrite", ".")
    assert "FSDP501" not in answer.out + answer.err


def test_tests_and_broken_files_name_no_torch(here: Path, run: Command) -> None:
    text = 'PyTorch(framework_version="2.0.1", entry_point="train.py")\n'
    (here / "test_launch.py").write_text(text)
    (here / "broken.py").write_text(f"{text}def (\n")
    (here / "broken.ipynb").write_text('{"cells": "PyTorch(framework_version=2.0)"')
    assert "it installs a torch" not in run("rewrite", ".").out


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.yaml", "# image: pytorch/pytorch:2.0.1\nname: pytorch/pytorch:2.0.1\n"),
        ("job.yaml", "image: pytorch/pytorch:2.7.1-cuda12.6\ntorch: torch==2.0.1\n"),
        (
            "Dockerfile",
            "ARG TORCH_VERSION=2.8\nARG MIN_TORCH_VERSION=2.0\nENV TORCH_VERSIONS=2.0\n",
        ),
        ("setup.sh", "pip install torch==2.7.1 torch>=2.0 torchvision==0.15.0\n"),
        ("setup.sh", "# pip install torch==2.0\npip install my-torch==1.0 torch-geometric==2.0\n"),
        ("README.md", "with torch 2.1 and torch<=2.9\n"),
        ("requirements.txt", "triton==3.3.1\ntorchvision==0.22.0\ntorchaudio==2.8.0\n"),
        ("requirements.txt", "triton>=2.1.0\ntorchvision\nmy-triton==2.1.0\ntriton==1.1\n"),
        ("requirements.txt", "tritonclient==2.1.0\n# triton==2.1.0\n"),
        ("notes.txt", "torch==2.0\n"),
        ("other/setup.sh", "pip install torch==2.0\n"),
        ("ci.yml", "pip install torch==2.0\n"),
        ("Dockerfile", "FROM pytorch/pytorch:2.7.0-cuda12.6\n"),
    ],
)
def test_what_installs_a_torch_that_will_do_is_not(
    here: Path, run: Command, name: str, text: str
) -> None:
    (here / name).parent.mkdir(parents=True, exist_ok=True)
    (here / name).write_text(text)
    answer = run("rewrite", ".")
    assert "FSDP501" not in answer.out + answer.err


def test_loads_of_a_torch_that_a_script_installs_are_named(here: Path, run: Command) -> None:
    (here / "setup.sh").write_text("pip install torch==2.5.0\n")
    (here / "resume.py").write_text(LOADING)
    assert "see resume.py:5\n" in run("rewrite", ".").out


def test_what_is_said_twice_in_a_file_is_named_once(here: Path, run: Command) -> None:
    (here / "setup.sh").write_text("pip install torch==2.5.0\npip install torch==2.5.0\n")
    assert run("rewrite", ".").out.count("it installs a torch") == 1


def test_without_a_migration_nothing_is_named(here: Path, run: Command) -> None:
    (here / "train.py").write_text("import torch\n")
    (here / "setup.sh").write_text("pip install torch==2.5.0\n")
    assert "FSDP501" not in run("rewrite", ".").out


SETTINGS = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: {}\n"
BESIDE = {
    "requirements.txt": ("torch==2.1.0\n", "it is pinned before torch 2.6"),
    "setup.sh": ("pip install torch==2.5.1\n", "it installs a torch that is too old"),
    "Dockerfile": ("FROM pytorch/pytorch:2.1.0-cuda12.1\n", "it installs a torch that is too old"),
}


@pytest.mark.parametrize("name", BESIDE)
def test_an_older_torch_beside_settings_is_named(here: Path, run: Command, name: str) -> None:
    (here / "train.py").write_text("import accelerate\n")
    (here / "a.yaml").write_text(SETTINGS.format("FULL_SHARD"))
    text, reason = BESIDE[name]
    (here / name).write_text(text)
    answer = run("rewrite", ".")
    assert f"FSDP501  left     {name}:1" in answer.out
    assert reason in answer.out
    assert (here / name).read_text() == text


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        ("FULL_SHARD", "torch==2.6.0\n"),
        ("FULL_SHARD", "torch>=2.0\n"),
        ("NO_SHARD", "torch==2.1.0\n"),  # which stay
    ],
)
def test_a_torch_that_settings_can_have_is_not(
    here: Path, run: Command, strategy: str, text: str
) -> None:
    (here / "train.py").write_text("import accelerate\n")
    (here / "a.yaml").write_text(SETTINGS.format(strategy))
    (here / "requirements.txt").write_text(text)
    assert "FSDP501" not in run("rewrite", ".").out
