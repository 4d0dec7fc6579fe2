"""The migrate command: what it tries, what it writes, what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.rewriting import apply
from tests.documents.schemas import problems
from tests.helpers.commandline import Command

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def train_generator(batches):
    generator = FSDP(build(1))
    optimizer = torch.optim.Adam(generator.parameters(), lr=0.05)
    for batch in batches:
        generator(batch).square().mean().backward()
        generator.clip_grad_norm_(0.1)
        optimizer.step()
        optimizer.zero_grad()


def train_critic(batches):
    critic = FSDP(build(2))
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.05)
    for batch in batches:
        critic(batch).abs().mean().backward()
        critic.clip_grad_norm_(0.2)
        optimizer.step()
        optimizer.zero_grad()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    batches = [torch.randn(4, 4) for _ in range(3)]
    train_generator(batches)
    train_critic(batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
GENERATOR, CRITIC = "generator = fully_shard(build(1))", "critic = fully_shard(build(2))"
CLIP = b"critic.parameters(), 0.2"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program, in a project of its own that is the working directory."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").touch()
    (project / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(project)
    monkeypatch.setenv("FSDP_MIGRATE_STATE", str(tmp_path / "state"))
    return project / "train.py"


def broken(monkeypatch: pytest.MonkeyPatch, old: bytes, new: bytes) -> None:
    """Let the rewriter write something wrong, wherever it writes ``old``."""
    right = apply.apply_edits

    def wrong(*arguments: object, **options: object) -> bytes:
        return right(*arguments, **options).replace(old, new)  # type: ignore[arg-type]

    monkeypatch.setattr(apply, "apply_edits", wrong)


def answered() -> Any:
    """What ``-o answer.json`` wrote, in the form that is published."""
    document = json.loads(Path("answer.json").read_text())
    assert problems("migrate", document) == []
    return document


# --- programs that are trained --------------------------------------------------------------------


def test_what_trains_the_same_is_written(run: Command, script: Path) -> None:
    outputs = ("-o", "answer.json", "-o", "answer.md", "-o", "answer.html")
    answer = run("migrate", "train.py", *outputs)
    assert answer.code == 0, answer.err
    after = script.read_text()
    assert GENERATOR in after
    assert CRITIC in after
    assert "PASS, same training: the whole program, 6 steps" in answer.out
    assert "ANSWER: same training (1 attempt" in answer.out
    said = answered()
    assert said["same_training"]
    assert said["written"] == ["train.py"]
    assert [attempt["passes"] for attempt in said["attempts"]] == [True]
    assert "| 1 | everything is written out | PASS, same training" in Path("answer.md").read_text()
    page = Path("answer.html").read_text()
    assert "MIGRATED</span>same training</h1>" in page
    assert page.count("<svg") == 2  # what verify draws of the attempt that was taken

    again = run("migrate", "train.py")
    assert again.code == 0
    assert "nothing to rewrite, so nothing was trained" in again.err
    assert script.read_text() == after
    assert run("undo").code == 0
    assert script.read_text() == PROGRAM


def test_the_model_that_trains_otherwise_is_left(
    run: Command, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, CLIP, b"critic.parameters(), 0.02")
    answer = run("migrate", "train.py", "-o", "answer.json")
    assert answer.code == 1, answer.err
    after = script.read_text()
    assert GENERATOR in after
    assert "critic = FSDP(build(2))" in after
    assert "critic.clip_grad_norm_(0.2)" in after
    said = answered()
    assert said["same_training"]
    line = PROGRAM[: PROGRAM.index("critic = FSDP")].count("\n") + 1
    (left,) = said["left"]
    assert left["what"] == f"the model made at train.py:{line}"
    assert "gradient clipping" in left["evidence"]
    assert len(said["attempts"]) <= 4
    assert "left     FSDP()" not in answer.out or "with it, different training" in answer.out


def test_a_model_that_needs_the_run_time_form_gets_it(
    run: Command, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, b"critic = fully_shard(build(2))", b"critic = build(2)")
    answer = run("migrate", "train.py", "-o", "answer.json")
    assert answer.code == 0, answer.out
    after = script.read_text()
    assert GENERATOR in after
    assert "critic = shard(build(2))" in after
    said = answered()
    assert said["left"] == []
    (other,) = said["other_forms"]
    assert other["what"].startswith("the run-time form for the model made at train.py:")
    assert other["evidence"].startswith("as it is written first, different training:")
    assert len(said["attempts"]) <= 4


def test_a_line_that_crashes_is_blamed_and_nothing_is_written(
    run: Command, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write_text(PROGRAM.replace("    train_generator(batches)\n", ""))
    before = script.read_text()
    broken(monkeypatch, CLIP, b"critic.no_parameters(), 0.2")
    answer = run("migrate", "train.py")
    assert "of the new code raised the error" in answer.out
    assert "without the model made at" in answer.out
    assert "that is the original itself" in answer.out
    # The generator was never made, so that nothing is known of it.
    assert "ANSWER: not migrated: no attempt trained the same" in answer.out
    assert script.read_text() == before
    assert answer.code == 1

    answer = run("migrate", "train.py", "--attempts", "1", "--anyway")
    assert "critic.no_parameters()" in script.read_text()
    assert answer.code == 1


def test_every_program_must_train_the_same(
    run: Command, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_generator = PROGRAM.replace("    train_critic(batches)\n", "")
    script.with_name("first.py").write_text(only_generator)
    start = PROGRAM.index("def train_generator")
    script.with_name("second.py").write_text(
        PROGRAM[:start]
        + PROGRAM[PROGRAM.index("def train_critic") :].replace("    train_generator(batches)\n", "")
    )
    script.unlink()
    broken(monkeypatch, CLIP, b"critic.parameters(), 0.02")
    answer = run("migrate", "first.py", "second.py")
    assert answer.code == 1
    assert GENERATOR in Path("first.py").read_text()
    assert "FSDP(build(2))" in Path("second.py").read_text()
    # The second model of the first file was never made, which is said.
    assert "rests on the code alone, for no program came by: first.py:" in answer.out


SAVE = """\
def save(model):
    for name, value in FSDP.state_dict(model).items():
        print(name, tuple(value.shape))


"""
SAVED = """\
    if "--save" in sys.argv:
        save(critic)
"""


SWALLOWED = """\
    if "--save" in sys.argv:
        try:
            save(critic)
        except Exception as error:
            print(error)
"""


@pytest.mark.parametrize(
    ("saved", "reached", "error"),
    [
        (SAVED, True, "NotImplementedError"),
        (SAVED, False, "NotImplementedError"),
        (SWALLOWED, True, "SystemExit"),
        (SWALLOWED.replace("Exception", "BaseException"), True, "os._exit"),
    ],
)
def test_a_guard_that_is_reached_leaves_its_model(
    run: Command, script: Path, saved: str, reached: bool, error: str
) -> None:
    """What is left behind it has no other form; a guard that no run reaches stays."""
    at = PROGRAM.index("def main")
    first = PROGRAM[: at - 2] + saved + "\n\n" + SAVE + PROGRAM[at:]
    script.write_text(first)
    answer = run("migrate", "train.py", "-o", "answer.json", *(["--", "--save"] * reached))
    assert answer.code == 1, answer.out
    after = script.read_text()
    said = answered()
    assert said["same_training"], answer.out
    assert GENERATOR in after
    if not reached:
        assert CRITIC in after
        assert f"raise {error}(" in after
        assert "fsdp-migrate FSDP499: " in after
        assert len(said["attempts"]) == 1
        assert said["left"] == []
        return
    assert "critic = FSDP(build(2))" in after
    assert "critic.clip_grad_norm_(0.2)" in after
    assert error not in after
    assert len(said["attempts"]) == 2
    line = first[: first.index("FSDP.state_dict")].count("\n") + 1
    guard = (
        f"FSDP499 at train.py:{line}, unbound(FSDP.state_dict) is left for you, and the guard in"
    )
    assert said["attempts"][1]["why"].startswith(guard)
    (left,) = said["left"]
    said_by = "NotImplementedError" if saved == SAVED else "ended with exit code 1"
    assert f"{said_by}: fsdp-migrate FSDP499" in left["evidence"]
    assert guard in answer.out


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("    train_generator(batches)\n", "    raise SystemExit('no data')\n", "no data"),
        ("FSDP(build(1))", "build(1)", "made no model with FSDP1"),
    ],
    ids=["crashes", "no model"],
)
def test_an_original_that_cannot_tell_is_not_migrated(
    run: Command, script: Path, old: str, new: str, reason: str
) -> None:
    text = PROGRAM.replace(old, new)
    if "model" in reason:
        text = text.replace("    train_critic(batches)\n", "").replace(
            "generator.clip_grad_norm_(0.1)", "pass"
        )
    script.write_text(text)
    answer = run("migrate", "train.py")
    assert answer.code == 2, answer.out
    assert reason in answer.out
    crashes = reason == "no data"
    assert ("ANSWER: not migrated: the original crashes" in answer.out) == crashes
    assert ("made no model" in answer.out) != crashes  # it may have made one later
    assert script.read_text() == text


# --- what is asked --------------------------------------------------------------------------------


def test_what_has_no_fsdp1_is_not_trained(run: Command, script: Path) -> None:
    script.write_text("print('hello')\n")
    answer = run("migrate", "train.py")
    assert answer.code == 0
    assert "nothing to rewrite" in answer.err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["none.py"], "none.py: no such script"),
        (["train.py", "--budget", "soon"], "--budget must be a time such as 90s, 10m or 1h"),
        (["train.py", "--attempts", "0"], "not between 1 and"),
        (["train.py", "-o", "answer.xml"], "must end in one of .txt, .json, .md, .html"),
        (["train.py", "-o", "no/where.md"], "is not a directory"),
        ([], "give a SCRIPT, or name functions"),
    ],
)
def test_wrong_options(run: Command, script: Path, arguments: list[str], reason: str) -> None:
    answer = run("migrate", *arguments)
    assert answer.code == 2
    assert reason in answer.err
    assert script.read_text() == PROGRAM


def test_a_journal_that_cannot_be_kept_is_said_before_anything_is_trained(
    run: Command, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSDP_MIGRATE_STATE", str(script.parent / "state"))
    answer = run("migrate", "train.py", "--allow-dirty")
    assert answer.code == 2
    assert "lies in the project" in answer.err
    assert "attempt" not in answer.out
    assert script.read_text() == PROGRAM


def test_scripts_of_several_projects(run: Command, script: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "pyproject.toml").touch()
    (other / "train.py").write_text(PROGRAM)
    answer = run("migrate", script, other / "train.py")
    assert answer.code == 2
    assert "belong to several projects" in answer.err


# --- what a run shows, and the code does not ------------------------------------------------------

UNTOLD = """\
import importlib

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = FSDP(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    hooks = importlib.import_module("hooks")
    torch.manual_seed(dist.get_rank())
    for batch in [torch.randn(4, 4) for _ in range(4)]:
        model(batch).square().mean().backward()
        getattr(hooks, "step")(model, optimizer)
    getattr(hooks, "save")(hooks.Box(model), "out.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
HOOKS = """\
import torch
import torch.distributed as dist


class Box:
    def __init__(self, model):
        self.inner = vars(type("Any", (), {"model": model}))["model"]


def step(model, optimizer):
    model.clip_grad_norm_(0.1)
    optimizer.step()
    optimizer.zero_grad()


def save(box, path):
    net = getattr(box, "inner")
    state = net.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)
    counts = list(map(lambda make: make(2, 2), [torch.nn.Linear]))[0]
    print(sorted(counts.state_dict()))
"""


def test_what_only_a_run_tells_is_seen_in_it(run: Command, script: Path) -> None:
    """Without the run the clipping is marked, and what is saved are one rank's parts."""
    script.write_text(UNTOLD)
    hooks = script.with_name("hooks.py")
    hooks.write_text(HOOKS)
    outputs = [f"answer.{kind}" for kind in ("txt", "json", "md", "html")]
    answer = run("migrate", "train.py", *(w for name in outputs for w in ("-o", name)))
    assert answer.code == 0, answer.err + answer.out
    assert "ANSWER: same training (1 attempt" in answer.out
    after = hooks.read_text()
    assert "TODO" not in after
    assert "clip_grad_norm_(model.parameters(), 0.1)" in after
    assert "get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))" in after
    assert "counts.state_dict()" in after
    for name in outputs:
        said = Path(name).read_text().lower()
        assert "seen in the run, not known from the code" in said or '"seen": [' in said
        assert "hooks.py:11" in said
    seen = json.loads(Path("answer.json").read_text())["seen"]
    line = HOOKS[: HOOKS.index("print(")].count("\n") + 1
    assert f"hooks.py:{line}: `counts` is no FSDP model, but Linear" in seen
    again = run("migrate", "train.py")
    assert "nothing to rewrite, so nothing was trained" in again.err
    assert run("undo").code == 0
    assert hooks.read_text() == HOOKS


def test_what_the_code_tells_rests_on_no_run(run: Command, script: Path) -> None:
    answer = run("migrate", "train.py", "-o", "answer.json")
    assert answer.code == 0, answer.err
    assert "seen in the run" not in answer.out
    assert "seen" not in json.loads(Path("answer.json").read_text())
