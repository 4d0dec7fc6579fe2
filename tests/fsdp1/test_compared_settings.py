"""A number of ranks that is compared tells, at another place, whether a model is FSDP1's."""

from __future__ import annotations

import pytest

from tests.fsdp1.test_settings import HEAD
from tests.helpers.migrating import migrate

PROGRAM = """\
def set_up():
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), 0


def main(net):
    rank, size, local = set_up()
    model = net
    if {first}:
        model = FSDP(net)
    {between}
    if {second}:
        model.load_state_dict(torch.load("a.pt"))
"""
PLAIN = 'model.load_state_dict(torch.load("a.pt"))'


def written(first: str, second: str, between: str = "pass") -> str:
    source = HEAD + PROGRAM.format(first=first, second=second, between=between)
    return migrate({"train.py": source})[1]["train.py"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("size > 1", "size <= 1"),
        ("size > 1", "not size > 1"),
        ("1 < size", "1 >= size"),
        ("size >= 2", "size < 2"),
        ("size > 1 and rank >= 0", "size <= 1"),
    ],
)
def test_one_question_has_one_answer(first: str, second: str) -> None:
    assert PLAIN in written(first, second)


@pytest.mark.parametrize(
    ("first", "second", "between"),
    [
        ("size > 1", "size > 1", "pass"),
        ("size > 1", "size <= 2", "pass"),  # two of them
        ("size > 1", "size < 1", "pass"),  # another question, which nobody puts together
        ("size > 1", "rank <= 1", "pass"),
        ("size > 1", "size <= 1", "size = 1"),
        ("size > 1", "size <= 1", "size, rank = rank, size"),
    ],
)
def test_others_do_not_tell(first: str, second: str, between: str) -> None:
    assert PLAIN not in written(first, second, between)
