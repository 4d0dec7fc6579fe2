"""The verify command: which trees are compared, what is asked for, what is said about mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path

import pytest

from fsdp_migrate.cli import parser, process, trees, verify
from fsdp_migrate.cli.options import Verify
from fsdp_migrate.cli.trees import locate_script
from fsdp_migrate.verify.compare.observed import Observed
from tests.helpers.commandline import DEMO, ROOT, Command


def git(*arguments: str) -> None:
    settings = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    subprocess.run(["git", *settings, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose first commit is the demo with FSDP1, and whose second is migrated."""
    project = tmp_path / "repository" / "recipes"
    shutil.copytree(DEMO / "before", project)
    monkeypatch.chdir(project)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "fsdp1")
    shutil.copytree(DEMO / "after", project, dirs_exist_ok=True)
    git("add", "-A")
    git("commit", "-q", "-m", "fsdp2")
    return project


def sources(tree: Path) -> dict[str, str]:
    return {p.relative_to(tree).as_posix(): p.read_text() for p in sorted(tree.rglob("*.py"))}


# --- trees ----------------------------------------------------------------------------------------


def test_a_revision_is_compared_with_the_working_tree(repository: Path) -> None:
    (repository / "train.py").write_text("# changed and not committed\n")
    with ExitStack() as stack:
        plan, shown = verify._plan(Verify(script="train.py", before="HEAD~1"), stack)
        assert sources(plan.before) == sources(DEMO / "before")
        assert plan.after == repository
        assert shown == {"before": f"{repository} at HEAD~1"}
        scratch = plan.before.parent
    assert not scratch.exists()


def test_two_revisions(repository: Path) -> None:
    (repository / "train.py").write_text("# changed and not committed\n")
    asked = Verify(script="train.py", before="HEAD~1", after="HEAD")
    with ExitStack() as stack:
        plan, _ = verify._plan(asked, stack)
        assert sources(plan.before) == sources(DEMO / "before")
        assert sources(plan.after) == sources(DEMO / "after")


def test_data_that_git_does_not_have_is_shared_from_the_working_tree(repository: Path) -> None:
    (repository / "data").mkdir()
    (repository / "data" / "tokens.bin").write_bytes(b"x")
    asked = Verify(script="train.py", before="HEAD~1", share=("data",))
    with ExitStack() as stack:
        plan, _ = verify._plan(asked, stack)
        assert (plan.before / "data" / "tokens.bin").read_bytes() == b"x"


def test_what_git_ignores_and_nothing_else_is_named(repository: Path) -> None:
    (repository / ".gitignore").write_text("data*\n*.pyc\n.venv\n")
    for name in ("data_sets/a.bin", "data/b.bin", ".venv/c.py", "__pycache__/d.pyc", "e.py"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_bytes(b"x")
    (repository / "datasets.py").write_text("")
    assert trees.not_in_git(repository, ()) == ["data", "data_sets", "datasets.py"]
    assert trees.not_in_git(repository, ("data", "datasets.py")) == ["data_sets"]
    asked = Verify(script="train.py", before="HEAD~1", share=("data_sets",))
    with ExitStack() as stack:
        _, shown = verify._plan(asked, stack)
    assert shown["ignored"] == ["data", "datasets.py"]


def test_without_git_nothing_is_named(tmp_path: Path) -> None:
    assert trees.not_in_git(tmp_path, ()) == []


@pytest.mark.train
def test_an_original_that_crashes_without_what_git_ignores_says_so(
    repository: Path, run: Command
) -> None:
    (repository / ".gitignore").write_text("data*\n")
    (repository / "datasets.py").write_text("loaded = True\n")
    (repository / "run.py").write_text("import datasets\nassert datasets.loaded\n")
    git("add", "run.py")
    git("commit", "-q", "-m", "a program")
    answer = run("verify", "run.py", "--before", "HEAD", "--format", "json")
    assert answer.code == 2, answer.out + answer.err
    document = json.loads(answer.out)
    assert [step["what"] for step in document["next"]] == ["the original"]
    assert any("needs of datasets.py" in note for note in document["notes"])
    assert "--share" in document["next"][0]["hint"]


def test_a_project_below_the_root_of_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DEMO / "before", tmp_path / "recipes")
    (tmp_path / "recipes" / "pyproject.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "x")
    with ExitStack() as stack:
        asked = Verify(script="recipes/train.py", before="HEAD")
        plan, _ = verify._plan(asked, stack)
        assert sources(plan.before) == sources(DEMO / "before")
        assert (plan.script, plan.workdir) == ("train.py", ".")


def test_without_a_tree_the_project_is_compared_with_its_rewritten_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DEMO / "before", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    with ExitStack() as stack:
        plan, shown = verify._plan(Verify(script="train.py"), stack)
        assert plan.before == tmp_path / "project"
        assert sources(plan.after) == sources(DEMO / "after")
        assert shown == {"after": "the same, rewritten in a scratch copy"}


def test_the_working_directory_may_be_named_as_a_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DEMO / "before", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    with ExitStack() as stack:
        plan, _ = verify._plan(Verify(script="train.py", before="."), stack)
        assert plan.before == tmp_path / "project"
        assert plan.after.name == "project"
        assert sources(plan.after) != sources(plan.before)


@pytest.mark.parametrize(
    ("here", "module", "workdir"),
    [
        ("src", "trainer.main", "src"),
        ("src", "trainer", "src"),
        (".", "src.trainer.main", "."),
        ("src/trainer", "src.trainer.main", "."),
    ],
)
def test_a_module_is_looked_for_below_the_working_directory_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, module: str, workdir: str
) -> None:
    package = tmp_path / "src" / "trainer"
    package.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    for name in ("__init__.py", "__main__.py", "main.py"):
        (package / name).touch()
    monkeypatch.chdir(tmp_path / here)
    found = locate_script(f"module:{module}", None)
    assert found == (tmp_path, f"module:{module}", workdir)


@pytest.mark.parametrize(
    ("name", "asked", "format"),
    [
        ("report.HTML", "text", "html"),
        ("verdict", "json", "json"),
        ("verdict.out", "junit", "junit"),
        ("report.md", "json", "markdown"),
    ],
)
def test_the_name_of_a_file_tells_its_format_or_the_option_does(
    name: str, asked: str, format: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    formats = verify._formats(Verify(script="train.py", format=asked, outputs=(path,)))
    assert formats == [(asked, None), (format, path)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_ended_cleans_up(number: int) -> None:
    cleaned = []
    outside = signal.signal(number, signal.SIG_DFL)  # nohup may have had it ignored
    before = signal.getsignal(number)

    def work() -> None:
        with process.terminated_like_interrupted():
            try:
                os.kill(os.getpid(), number)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), number)  # impatience changes nothing
                cleaned.append(number)

    try:
        with pytest.raises(KeyboardInterrupt):
            work()
        assert cleaned == [number]
        assert signal.getsignal(number) == before
    finally:
        signal.signal(number, outside)


@pytest.mark.train
def test_a_migration_in_git_is_verified_against_the_commit_before(
    repository: Path, run: Command
) -> None:
    answer = run("verify", "train.py", "--before", "HEAD~1", "--steps", "3", "--no-twin")
    assert answer.code == 0, answer.out + answer.err
    assert f"before   {repository} at HEAD~1" in answer.out


# --- what is asked for ----------------------------------------------------------------------------


@pytest.mark.train
def test_several_numbers_of_ranks_give_a_table(tmp_path: Path, run: Command) -> None:
    answer = run(
        *("verify", "train.py", "--before", DEMO / "before", "--after", DEMO / "after"),
        *("--nproc", "1,2", "--steps", "3", "-o", tmp_path / "r.json", "-o", tmp_path / "r.html"),
        *("--observed", tmp_path / "observed.json"),
    )
    assert answer.code == 0, answer.out + answer.err
    report = json.loads((tmp_path / "r.json").read_text())
    assert [world["ranks"] for world in report["worlds"]] == [1, 2]
    assert all(world["loss_apart"] < 1e-5 for world in report["worlds"])
    assert all(world["parameters_apart"] < 1e-5 for world in report["worlds"])
    assert report["fsdp1_uses"]["uses"] >= 8
    assert report["fsdp1_uses"]["unseen"] == []
    observed = Observed.of_dict(json.loads((tmp_path / "observed.json").read_text()))
    assert {use.ranks for use in observed.uses} == {(0,)}
    assert [made.module for made in observed.made] == ["Transformer"]
    said = " ".join(answer.out.split())
    assert "steps 1 to 3 of a program that went on, 1 and 2 ranks" in said
    assert "Numbers of ranks" in (tmp_path / "r.html").read_text()


@pytest.mark.train
def test_an_unchanged_original_is_trained_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    command = ("verify", "train.py", "--before", DEMO / "before", "--after", DEMO / "after")
    options = ("--steps", "2", "--cache", "--format", "json")
    notes = []
    for _ in range(2):
        answer = run(*command, *options)
        assert answer.code == 0, answer.err
        notes.append(json.loads(answer.out)["runs"]["before"]["notes"])
    assert notes == [[], ["taken from the cache, not trained again"]]


def test_every_option_in_the_document_exists(run: Command) -> None:
    shown = run("verify", "--help").out
    document = (ROOT / "docs" / "verify.md").read_text(encoding="utf-8")
    text = re.sub(r"--launcher 'torchrun [^']*'", "", document)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    of_scripts = {"--resume", "--steps"}
    assert {option for option in named - of_scripts if option not in shown} == set()


def test_every_option_reaches_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Verify] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(verify, "verify", lambda asked: seen.append(asked) or 0)
    arguments = [
        *("verify", "--before", "a", "--after", "b", "--nproc", "1,2", "--steps", "7"),
        *("--timeout", "9", "--seed", "5", "--device", "native", "--precision", "native"),
        *("--launcher", "srun", "--python", "py", "--no-twin", "--cache", "--timing"),
        *("--resume-check=--resume x", "--env", "A=1", "--env", "B=2", "--share", "data"),
        *("--keep", "k", "--format", "json", "-o", "r.md", "-o", "r.html", "-q"),
        *("--observed", "o.json", "--fsdp2-config", "f.yaml"),
        *("--strict-cost", "--to-the-end", "--trust-rules"),
        *("train.py", "--", "--lr", "1"),
    ]
    assert parser.run(arguments) == 0
    asked = Verify(
        script="train.py",
        args=("--lr", "1"),
        before="a",
        after="b",
        nproc=(1, 2),
        steps=7,
        timeout=9.0,
        seed=5,
        device="native",
        precision="native",
        launcher="srun",
        python="py",
        twin=False,
        resume=("--resume", "x"),
        timing=True,
        to_the_end=True,
        cache=tmp_path / "fsdp-migrate" / "verify",
        env={"A": "1", "B": "2"},
        share=("data",),
        keep=Path("k"),
        format="json",
        outputs=(Path("r.md"), Path("r.html")),
        observed=Path("o.json"),
        fsdp2_config=Path("f.yaml"),
        strict_cost=True,
        quiet=True,
        trust_rules=True,
    )
    assert seen == [asked]
    # Nothing that can be asked for was left out above.
    assert {f.name for f in fields(Verify) if getattr(asked, f.name) == f.default} == set()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "yaml"], "--format must be one of text, json, junit, markdown, html"),
        (["-o", "report.pdf"], "must end in one of .txt, .json, .xml, .md, .html"),
        (["-o", "nowhere/report.md"], "nowhere is not a directory"),
        (["--observed", "nowhere/o.json"], "its folder is not a directory"),
        (["--fsdp2-config", "nowhere/f.yaml"], "its folder is not a directory"),
        (["--nproc", "0"], "nproc must be at least 1"),
        (["--nproc", "1,,2"], "'1,,2'"),
        (["--steps", "0"], "max_steps must be at least 1"),
        (["--timeout", "-1"], "timeout must be a positive number"),
        (["--env", "HOME"], "--env must be NAME=VALUE"),
        (["--before", "v1.0"], "v1.0: is no directory, and"),
        (["--device", "gpu"], "'gpu' is none of auto, native, simulate"),
        (["--launcher", "torchrun 'x"], "cannot be read"),
        (["--resume-check", "a 'b"], "--resume-check"),
        (["--share", "/data"], "share must be a path below the trees"),
        (["--python", "/nowhere/python"], "/nowhere/python"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_explained_in_a_sentence(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Command,
) -> None:
    shutil.copytree(DEMO / "before", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    answer = run("verify", "train.py", *arguments)
    assert answer.code == 2
    (line,) = [line for line in answer.err.splitlines() if line.startswith("error: ")]
    assert says in line
    assert not answer.out


def test_a_file_that_does_not_parse_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel\nfor\n"
    )
    monkeypatch.chdir(tmp_path)
    answer = run("verify", "train.py")
    assert answer.code == 2
    assert "error: train.py:2: does not parse" in answer.err


def test_a_project_without_fsdp1_has_nothing_to_compare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Command
) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "train.py").write_text("print(1)\n")
    monkeypatch.chdir(tmp_path)
    answer = run("verify", "train.py")
    assert answer.code == 2
    assert "nothing to rewrite" in answer.err
