"""Lightning itself trains every row of the table before and after, on two ranks of a simulation."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.configurations import lightning_runs, lightning_table
from tests.configurations.lightning_runs import Ran
from tests.configurations.lightning_table import OTHER, ROWS, SAME, Row
from tests.helpers.migrating import migrate
from tests.tools import documents

pytestmark = [pytest.mark.train, pytest.mark.corpus, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def lightning(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lightning_runs.installed(tmp_path_factory.mktemp("lightning"))


def written(row: Row) -> tuple[str, str]:
    """Our outcome, and the program that takes the place of a row's."""
    result, after = migrate({"train.py": lightning_runs.program(row.program, row.replaced)})
    (decision,) = result.decisions
    if not row.hand:
        return decision.outcome.value, after["train.py"]
    parts = {**row.parts, **row.hand}
    if row.arguments:
        parts["devices=2"] = f"devices=2, {row.arguments}"
    return decision.outcome.value, lightning_runs.program(row.program, parts)


Runs = Callable[[Row], tuple[Ran, Ran]]


@pytest.fixture(scope="module")
def ran(lightning: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What each row does before and after; all rows of a program are run at once."""
    found: dict[int, tuple[Ran, Ran]] = {}

    def of(row: Row) -> tuple[Ran, Ran]:
        if id(row) not in found:
            rows = [each for each in ROWS if each.program == row.program]
            scratch = tmp_path_factory.mktemp(row.program)
            programs = {}
            for number, each in enumerate(rows):
                before = lightning_runs.program(each.program, each.replaced)
                programs[scratch / f"{number}-before"] = before
                programs[scratch / f"{number}-after"] = written(each)[1]
            runs = lightning_runs.run(programs, lightning)
            pairs = zip(runs[::2], runs[1::2], strict=True)
            found.update(zip(map(id, rows), pairs, strict=True))
        return found[id(row)]

    return of


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.program}: {row.title}")
def test_lightning_does_what_the_row_says(row: Row, ran: Runs) -> None:
    before, after = ran(row)
    assert written(row)[0] == row.outcome
    assert before.text == row.runs, before.said
    assert before.error or len(before.losses) == (12 if "accumulate" in row.arguments else 6)
    does = after.error or (SAME if lightning_runs.same(before, after) else OTHER)
    if before.error and not after.error:
        does = "trains"
    assert does == row.after, f"{before.losses} {after.losses} {after.said}"


def test_the_table_is_current() -> None:
    text = documents.CONFIGURATIONS.read_text(encoding="utf-8")
    assert documents.with_lightning(text) == text


CHECKPOINTS = (
    "callbacks=[L.pytorch.callbacks.ModelCheckpoint('saved', save_top_k=-1, every_n_train_steps=3)]"
)


def resumed(
    name: str, parts: dict[str, str], after: str, saved: str, scratch: Path, lightning: Path
) -> tuple[Ran, Ran]:
    """A program that saves after three steps, and ``after``, which goes on from there."""
    save: dict[str, str] = {}
    resume = {'os.environ.get("RESUME")': repr(saved)}
    if name == "fabric":
        save = {'"SAVE" in os.environ': "True", 'os.environ["SAVE"]': "'saved'"}
        resume = {'"RESUME" in os.environ': "True", 'os.environ["RESUME"]': repr(saved)}
    before = lightning_runs.program(name, {**parts, **save})
    for old, new in resume.items():
        assert old in after
        after = after.replace(old, new)
    (first,) = lightning_runs.run({scratch / "before": before}, lightning)
    (second,) = lightning_runs.run({scratch / "after": after}, lightning)
    return first, second


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_fabric_goes_on_from_what_was_saved_before(
    kind: str, tmp_path: Path, lightning: Path
) -> None:
    strategy = f'{lightning_table.STRATEGY[:-1]}, state_dict_type="{kind}")'
    parts = {lightning_table.STRATEGY: strategy}
    _, files = migrate({"train.py": lightning_runs.program("fabric", parts)})
    saved = str(tmp_path / "before" / "saved")
    first, second = resumed("fabric", parts, files["train.py"], saved, tmp_path, lightning)
    assert not first.error, first.said
    assert not second.error, second.said
    assert second.losses == pytest.approx(first.losses[3:], rel=1e-5)


def test_the_trainer_goes_on_from_what_was_saved_before(tmp_path: Path, lightning: Path) -> None:
    """As the original itself goes on."""
    parts = {"devices=2": f"devices=2, {CHECKPOINTS}"}
    source = lightning_runs.program("trainer", parts)
    _, files = migrate({"train.py": source})
    saved = str(tmp_path / "before" / "saved" / "epoch=0-step=3.ckpt")
    first, second = resumed("trainer", parts, files["train.py"], saved, tmp_path, lightning)
    again = source.replace('os.environ.get("RESUME")', repr(saved))
    (third,) = lightning_runs.run({tmp_path / "again": again}, lightning)
    assert not first.error, first.said
    assert not second.error, second.said
    assert len(second.losses) == 3
    assert lightning_runs.same(third, second), f"{third.losses} {second.losses}"


def test_the_trainer_does_not_load_folders_that_were_saved_before(
    tmp_path: Path, lightning: Path
) -> None:
    strategy = f'{lightning_table.STRATEGY[:-1]}, state_dict_type="sharded")'
    parts = {"devices=2": f"devices=2, {CHECKPOINTS}", lightning_table.STRATEGY: strategy}
    hand = {**lightning_table.by_hand(folder=True), "devices=2": parts["devices=2"]}
    after = lightning_runs.program("trainer", hand)
    saved = str(tmp_path / "before" / "saved" / "epoch=0-step=3.ckpt")
    first, second = resumed("trainer", parts, after, saved, tmp_path, lightning)
    assert not first.error, first.said
    assert "Missing key in checkpoint state_dict: state_dict." in second.said


@pytest.mark.parametrize("name", ["trainer", "fabric"])
def test_verify_says_that_it_trains_the_same(name: str, tmp_path: Path, lightning: Path) -> None:
    source = lightning_runs.program(name, {})
    _, after = migrate({"train.py": source})
    for side, text in (("before", source), ("after", after["train.py"])):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "fsdp_migrate", "verify", "--device", "simulate"]
    command += ["--no-twin", "--before", "before", "--after", "after", "train.py"]
    environment = {**os.environ, "PYTHONPATH": lightning_runs.searched(lightning)}
    ran = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "VERDICT  PASS" in ran.stdout, ran.stdout + ran.stderr
    assert "not seen by the rewriter" not in ran.stdout
