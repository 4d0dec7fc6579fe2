"""A sample of what ``make fuzz`` does for an hour."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.fuzz import judging, making

SEEDS = range(3)
EACH = 25


def is_open(kind: str, what: str) -> bool:
    """A local name that only an argument of FSDP1 asked for stays; ``make fuzz`` counts it."""
    return kind == judging.UNUSED and what.startswith("Local variable")


@pytest.mark.parametrize("seed", SEEDS)
def test_accidents_are_answered(seed: int) -> None:
    wrong = {
        f"{accident.name} ({accident.way})": found
        for accident in islice(making.accidents(seed), EACH)
        if (found := [each for each in judging.faults(accident.text) if not is_open(*each)])
    }
    assert not wrong


def test_a_seed_makes_always_the_same() -> None:
    assert list(islice(making.accidents(7), 5)) == list(islice(making.accidents(7), 5))
