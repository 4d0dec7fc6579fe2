"""What a program's own variables hold across steps is compared: averages, schedules, samplers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.gates.held import same_averages, same_schedules
from fsdp_migrate.verify.compare.recording import Held, Part
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.report import text

from .recordings import SIZE, evidence, sketch
from .scripts import FSDP1, FSDP2, judged

# Two averages: a dictionary of what each rank holds, and a plain module of whole parameters.
PROGRAM = """\
import copy

from parallel import whole


def named(model):
    for name, parameter in model.named_parameters():
        yield name.replace("_fsdp_wrapped_module.", ""), parameter


class Average:
    def __init__(self, model):
        self.shadow = {name: p.detach().clone() for name, p in named(model)}

    @torch.no_grad()
    def update(self, model):
        for name, parameter in named(model):
            self.shadow[name].lerp_(parameter, 0.01)


def main():
    settings = locals()
    run()
    assert not settings


def run():
    plain = net()
    kept = copy.deepcopy(plain)
    model = wrap(plain)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
    average = Average(model)
    data = torch.utils.data.TensorDataset(torch.randn(16, 8))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            average.update(model)
            with torch.no_grad():
                now = whole(model)
                for name, parameter in kept.named_parameters():
                    parameter.lerp_(now[name], 0.01)


main()
"""
WHOLE1 = """

def whole(model):
    with FSDP.summon_full_params(model):
        return {
            name.replace("_fsdp_wrapped_module.", ""): parameter.detach().clone()
            for name, parameter in model.named_parameters()
        }
"""
WHOLE2 = """

def whole(model):
    return {name: parameter.full_tensor() for name, parameter in model.named_parameters()}
"""


@pytest.mark.train
@pytest.mark.parametrize(
    ("old", "new", "gate", "says"),
    [
        ("", "", None, ""),
        ("            average.update(model)\n", "", "held", "run.average.shadow: never updated"),
        ("lerp_(now[name], 0.01)", "lerp_(now[name], 0.011)", "held", "run.kept"),
        ("        sampler.set_epoch(epoch)\n", "", "samplers", "told to samplers"),
        ("            schedule.step()\n", "", "schedules", "run.schedule.last_epoch"),
    ],
    ids=["as before", "dictionary never updated", "module at another rate", "epoch", "schedule"],
)
def test_what_lives_across_steps_is_compared(
    old: str, new: str, gate: str | None, says: str, tmp_path: Path, server: WarmServer
) -> None:
    replaced = [(old, new)] if old else []
    report = judged(
        tmp_path,
        PROGRAM,
        *replaced,
        before=FSDP1 + WHOLE1,
        after=FSDP2 + WHOLE2,
        server=server,
        max_steps=3,
    )
    first = report.first_failure.key if report.first_failure else None
    assert first == gate, text.render(report)
    assert says in report.says
    if gate is None:
        assert report.exit_code == 0, text.render(report)
        (found,) = (each for each in report.gates if each.key == "held")
        assert "run.average.shadow, run.kept" in found.says


# --- the questions alone -------------------------------------------------------------------------

VALUES = [0.5, -1.0, 2.0, 0.25]


def part(values: list[float], shape: int | None = None, key: str | None = None) -> Part:
    count = shape or len(values)
    return (count,), key or f"0:{len(values)}", sketch(values, f"signs{len(values)}{key}")


def with_groups(found: Evidence, *sides: list[tuple[Part | None, ...]]) -> Evidence:
    """``found``, where a dictionary holds these parts of one tensor after each step."""
    recordings = [
        dataclasses.replace(
            side,
            held=tuple(
                Held(n, ({}, {}), {"main.ema": {"layer.weight": parts}})
                for n, parts in enumerate(steps)
            ),
        )
        for side, steps in zip((found.before, found.after, found.twin), sides, strict=True)
        if side is not None
    ]
    return Evidence(*recordings)


def average(*sides: tuple[Part | None, ...]) -> Gate:
    steps = [[each] for each in (*sides, sides[0])]
    gate = same_averages(with_groups(evidence(), *steps))
    assert gate is not None
    return gate


whole = (part(VALUES), part(VALUES))


@pytest.mark.parametrize(
    "after",
    [
        whole,
        (part(VALUES), None),  # on rank 0 alone
        (part(VALUES[:2]), part(VALUES[2:])),  # local shards that know nothing of the whole
        (part(VALUES[:3], 4, "0:3"), part(VALUES[3:], 4, "3:4")),  # a DTensor
    ],
)
def test_tensors_may_be_cut_in_any_way(after: tuple[Part | None, ...]) -> None:
    assert average(whole, after).status is Status.PASS
    assert average(after, whole).status is Status.PASS


@pytest.mark.parametrize(
    "after",
    [
        (part(VALUES[:2]), None),  # one shard of it
        (part([1.001 * each for each in VALUES]), part(VALUES)),
        (part(VALUES[:2]), part([2.0, 0.26])),
    ],
)
def test_other_values_and_single_shards_are_named(after: tuple[Part | None, ...]) -> None:
    assert average(whole, after).status is Status.FAIL


def test_a_whole_that_becomes_local_shards_leaves_it_open() -> None:
    values = [float(number) for number in range(SIZE)]
    half = SIZE // 2
    all_of_it = (part(values), part(values))
    cut = (part(values[:half]), part(values[half:]))
    placed = (part(values[:half], SIZE, f"0:{half}"), part(values[half:], SIZE, f"{half}:{SIZE}"))
    assert average(all_of_it, cut).status is Status.VOID
    assert average(all_of_it, placed).status is Status.PASS
    assert average(cut, placed).status is Status.PASS


def test_an_average_that_stands_still_is_named_however_slowly_it_moved() -> None:
    moved = [(part(VALUES),), (part([*VALUES[:3], 0.25 + 1e-9]),)]
    still = [moved[0], moved[0]]
    gate = same_averages(with_groups(evidence(), moved, still, moved))
    assert gate is not None
    assert gate.status is Status.FAIL
    assert "never updated" in gate.says
    same = same_averages(with_groups(evidence(), moved, moved, moved))
    assert same is not None
    assert same.status is Status.PASS


def test_a_fact_that_follows_rounding_is_not_compared() -> None:
    def at(scale: float) -> tuple[Held, ...]:
        return (Held(0, ({"main.scaler.get_scale()": scale},) * 2, {}),)

    plain = evidence()
    assert plain.twin is not None
    before = dataclasses.replace(plain.before, held=at(8.0))
    after = dataclasses.replace(plain.after, held=at(4.0))
    twins = [dataclasses.replace(plain.twin, held=at(scale)) for scale in (8.0, 4.0)]
    found = [same_schedules(Evidence(before, after, twin)) for twin in twins]
    assert found[0] is not None
    assert found[0].status is Status.FAIL
    assert found[1] is None
