"""The ruler finds no difference where there is none, and every one that there is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from fsdp_migrate.cli import parser
from tests.ruler import odd, record
from tests.ruler.inputs import LOOK, REWRITE, Input

CRLF, BROKEN = "CRLF", "syntax error beside a good file"
INPUTS = [
    Input(name, dict(odd.INPUTS[name][0]).copy, {"2.13": [*LOOK[:2], LOOK[-1], *REWRITE, "undo ."]})
    for name in (CRLF, BROKEN)
]
TRAIN = Path("train.py")


def differences(directory: Path) -> tuple[record.Compared, list[str]]:
    told: list[str] = []
    return record.compare(directory, INPUTS, only=None, jobs=2, tell=told.append), told


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("record")
    record.record(directory, INPUTS, only=None, jobs=2)
    return directory


def test_the_same_code_makes_no_difference(recorded: Path) -> None:
    compared, told = differences(recorded)
    assert compared.equal
    assert not told
    assert compared.clock.outputs.total() > 20


def written(arguments: Sequence[str]) -> None:
    if TRAIN.exists() and b"fully_shard" in TRAIN.read_bytes():
        TRAIN.write_bytes(TRAIN.read_bytes() + b"\n")


def line_end(arguments: Sequence[str]) -> None:
    if TRAIN.exists() and b"fully_shard" in TRAIN.read_bytes():
        TRAIN.write_bytes(TRAIN.read_bytes().replace(b"\r\n", b"\n", 1))


def mode(arguments: Sequence[str]) -> None:
    if TRAIN.exists() and b"fully_shard" in TRAIN.read_bytes():
        TRAIN.chmod(0o755)


def added(arguments: Sequence[str]) -> None:
    if arguments[0] == "rewrite":
        Path("more.txt").write_bytes(b"")


def said(arguments: Sequence[str]) -> None:
    sys.stdout.write(" ")


def complained(arguments: Sequence[str]) -> None:
    if "concise" in arguments:
        sys.stderr.write("error: a second time\n")


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        (written, "CRLF: 2.13: rewrite . @ -v => train.py"),
        (line_end, "CRLF: 2.13: rewrite . @ -v => train.py"),
        (mode, "CRLF: 2.13: rewrite . @ -v => files"),
        (added, "CRLF: 2.13: rewrite . @ --dry-run --partial => more.txt"),
        (said, "CRLF: 2.13: undo ."),
        (complained, f"{BROKEN}: 2.13: check . @ --format concise"),
    ],
)
def test_a_planted_change_is_told_by_its_name(
    recorded: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[Sequence[str]], None],
    where: str,
) -> None:
    real = parser.run

    def run(arguments: Sequence[str]) -> int:
        code = real(arguments)
        fault(arguments)
        return code

    monkeypatch.setattr(parser, "run", run)
    compared, told = differences(recorded)
    assert not compared.equal
    assert where in told


def test_another_exit_code_is_told(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = parser.run
    monkeypatch.setattr(parser, "run", lambda arguments: real(arguments) + 1)
    compared, told = differences(recorded)
    assert set(compared.different) == {CRLF, BROKEN}
    assert "    ---- exit code 1" in told
    assert "    +--- exit code 2" in told


def test_an_input_that_went_or_came_is_told(recorded: Path) -> None:
    told: list[str] = []
    new = Input("new", dict, {})
    compared = record.compare(recorded, [INPUTS[0], new], only=None, jobs=2, tell=told.append)
    assert told == ["new: is not in the record"]
    assert compared.missing == [BROKEN]
    assert not compared.equal
