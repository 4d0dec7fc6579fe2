"""What first weights tell of two runs that drew them differently, and what moves buffers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import pytest

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gates.start import drawn, drawn_apart
from fsdp_migrate.verify.compare.judge import judge
from fsdp_migrate.verify.compare.recording import Recording, Snapshot, Tensors

from .recordings import evidence, sketch

Draw = Callable[[], float]


def start(*ranks: list[float], **changes: Any) -> Recording:
    """A recording whose one parameter starts as what the ranks hold of it, beside one of which all
    ranks drew the same."""
    draw = gauss(9)
    alike = [draw() for _ in range(40)]
    values = {"w": ranks, "other": [alike for _ in ranks]}
    params = {
        name: tuple((f"{n}:{n + 1}", sketch(each, f"{n}")) for n, each in enumerate(pieces))
        for name, pieces in values.items()
    }
    plain = evidence().before
    init = Snapshot(Tensors(params), plain.init.buffers)
    return dataclasses.replace(plain, init=init, deferred=True, **changes)


def gauss(seed: int, scale: float = 1.0, mean: float = 0.0) -> Draw:
    draw = random.Random(seed)
    return lambda: draw.gauss(mean, scale)


def found(count: int, before: Draw, after: Draw, *, alike: bool) -> Evidence:
    """``count`` values a rank on two ranks, which the second rank may draw like the first."""
    first = [after() for _ in range(count)]
    theirs = [first, first if alike else [after() for _ in range(count)]]
    mine = [[before() for _ in range(count)] for _ in range(2)]
    return Evidence(start(*mine), start(*theirs, drawn_alike=True))


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5, 200])
@pytest.mark.parametrize("seed", range(5))
def test_draws_from_one_distribution_are_alike_however_few_they_are(
    seed: int, count: int, alike: bool
) -> None:
    assert drawn_apart(found(count, gauss(seed), gauss(seed + 100), alike=alike))


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize(
    ("count", "after"),
    [
        pytest.param(1, lambda: 0.0, id="one value, zero"),
        pytest.param(2, lambda: 0.3, id="all equal"),
        pytest.param(60, gauss(1, 10.0), id="another spread"),
        pytest.param(60, gauss(1, 1.0, 5.0), id="another mean"),
    ],
)
def test_draws_from_another_distribution_are_told(count: int, after: Draw, alike: bool) -> None:
    assert not drawn_apart(found(count, gauss(1), after, alike=alike))


def test_a_constant_is_told_from_another_and_not_from_itself() -> None:
    assert not drawn_apart(found(3, lambda: 1.0, lambda: 1.1, alike=True))
    same = Evidence(start([1.0], [1.0]), start([1.0], [1.0], drawn_alike=True))
    assert "too few" not in " ".join(told(same))


def test_that_too_few_values_tell_nothing_is_said() -> None:
    few = found(1, gauss(1), gauss(2), alike=True)
    assert "too few independent values to tell a distribution: w" in told(few)[1]


def told(each: Evidence) -> tuple[str, ...]:
    gate = drawn(dataclasses.replace(each, drawn=each.after))
    assert gate is not None
    return gate.details


# --- buffers -------------------------------------------------------------------------------------


def buffered(recording: Recording, dtype: str, *values: float, first: float = 1.0) -> Recording:
    """The only buffer of ``recording`` has these values at first and after its steps."""

    def snapshot(at: Snapshot, value: float, dtype: str) -> Snapshot:
        buffers = {"typical": (dtype, (), value, value * value)}
        return dataclasses.replace(at, buffers=(buffers,) * recording.world)

    after = tuple(
        snapshot(at, value, dtype) for at, value in zip(recording.after, values, strict=True)
    )
    return dataclasses.replace(
        recording, init=snapshot(recording.init, first, "float32"), after=after
    )


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        ((2.0, 2.0, 3.0, 3.0), (1.0, 1.0, 1.0, 1.0), "updated-buffers"),
        ((1.0, 1.0, 1.0, 1.0), (2.0, 2.0, 3.0, 3.0), "updated-buffers"),
        ((2.0, 2.0, 3.0, 3.0), (2.0, 2.0, 3.0, 4.0), "buffers"),
        ((1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0), None),
    ],
)
def test_a_buffer_that_is_not_updated_any_more_is_the_cause(
    before: tuple[float, ...], after: tuple[float, ...], cause: str | None
) -> None:
    plain = evidence()
    sides = [
        buffered(side, "float32", *values)
        for side, values in ((plain.before, before), (plain.after, after), (plain.before, before))
    ]
    failure = judge(Evidence(*sides)).first_failure
    assert (failure and failure.key) == cause


def test_a_buffer_that_is_cast_by_one_side_says_nothing_of_updates() -> None:
    plain = evidence()
    before = buffered(plain.before, "bfloat16", *[1.5] * 4)
    after = buffered(plain.after, "float32", *[1.0] * 4)
    keys = [gate.key for gate in judge(Evidence(before, after)).gates]
    assert "updated-buffers" not in keys
