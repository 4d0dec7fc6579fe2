"""How far a program is judged, and what voids the answer: rounding, and programs that change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import AMPLIFIES, Status
from fsdp_migrate.verify.compare.gates.ending import same_end, same_left_weights
from fsdp_migrate.verify.compare.gates.training import horizon, same_trajectory
from fsdp_migrate.verify.compare.judge import NATIVE, judge
from fsdp_migrate.verify.compare.recording import Recording, Rest
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify

from .programs import failed
from .recordings import Run, evidence

PROGRAM = """\
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
{imports}

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed({seed})
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr={lr})
torch.manual_seed({seed} + 1 + rank)
data = [(torch.randn(4, 8), torch.randn(4, 4)) for _ in range(8)]


def evaluate():
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model(x), y) for x, y in data)
    dist.all_reduce(total)


for step in range({steps}):
    x, y = data[step % 8]
    output = model(x)
    for _ in range({amplified}):
        output = torch.sin(3 * output)
    nn.functional.mse_loss(output, y).backward()
    {before_step}
    optimizer.step()
    optimizer.zero_grad()
{end}
dist.destroy_process_group()
{leave}
"""
FSDP1 = {
    "imports": "from torch.distributed.fsdp import FullyShardedDataParallel",
    "wrap": 'model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))',
}
FSDP2 = {"imports": "from torch.distributed.fsdp import fully_shard", "wrap": "fully_shard(model)"}
PLAIN = {
    "seed": "3",
    "steps": "5",
    "lr": "0.05",
    "amplified": "0",
    "before_step": "pass",
    "end": "model.eval()\nevaluate()",
    "leave": "",
}
ZEROED = "for p in model.parameters():\n    p.data.zero_()\n"
NEGATED = "[p.grad.neg_() for p in model.parameters()] if step >= 2 else None"


@pytest.fixture
def judged(tmp_path: Path, server: WarmServer) -> Callable[..., Report]:
    """Verify a program and its migration: both with changes, the latter with more of them."""

    def run(
        after: dict[str, str] | None = None, both: dict[str, str] | None = None, **plan: Any
    ) -> Report:
        sides = {
            "before": {**PLAIN, **FSDP1, **(both or {})},
            "after": {**PLAIN, **FSDP2, **(both or {}), **(after or {})},
        }
        for side, parts in sides.items():
            (tmp_path / side).mkdir()
            (tmp_path / side / "train.py").write_text(PROGRAM.format(**parts))
        trees = {side: tmp_path / side for side in sides}
        return verify(Plan(**trees, script="train.py", timeout=60.0, **plan), server=server)

    return run


# --- to the end of a program that ends -----------------------------------------------------------


@pytest.mark.train
def test_a_program_that_ends_is_judged_to_its_end(judged: Callable[..., Report]) -> None:
    report = judged(both={"leave": "sys.exit(4)"})
    assert report.verdict is Verdict.SAME, text.render(report)
    assert "the whole program, 5 steps" in report.says
    keys = {gate.key for gate in report.gates}
    assert {"ending", "remainder", "left", "last-evaluation"} <= keys
    assert not any("step 5" in limit for limit in report.limits)


@pytest.mark.train
@pytest.mark.parametrize(
    ("after", "cause", "says"),
    [
        ({"end": "evaluate()"}, "remainder", "5 modules in evaluation mode before, 0 after"),
        ({"end": f"{ZEROED}model.eval()\nevaluate()"}, "left", "4 of 4 parameters differ"),
        ({"leave": "sys.exit('no more')"}, "ending", "exit status 0 before, 1 after"),
        ({"steps": "10**6"}, "steps", "5 optimizer steps before, 6 after, which goes on"),
    ],
    ids=["evaluated in training mode", "weights zeroed", "exit status", "no end"],
)
def test_what_follows_the_last_step(
    after: dict[str, str], cause: str, says: str, judged: Callable[..., Report]
) -> None:
    report = judged(after)
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, cause), text.render(report)
    assert says in report.says


@pytest.mark.train
def test_steps_grow_while_there_is_time(judged: Callable[..., Report]) -> None:
    report = judged({"steps": "15"}, {"steps": "30"}, max_steps=100, grow_after=10)
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "steps"), text.render(report)
    assert "30 optimizer steps before, 15 after" in report.says


@pytest.mark.train
@pytest.mark.parametrize(
    ("asked", "end", "verdict", "says"),
    [
        (False, "raise OSError('disk')", Verdict.SAME, "steps 1 to 3 of a program that went on"),
        (True, "raise OSError('disk')", Verdict.AFTER_FAILED, "OSError: disk"),
        (True, ZEROED, Verdict.DIFFERENT, "final parameters, at the end: 4 of 4"),
        (True, "pass", Verdict.SAME, "steps 1 to 3, and how all 9 ended"),
    ],
    ids=["not asked for", "a crash", "weights zeroed", "nothing"],
)
def test_what_comes_after_the_judged_part_is_looked_for_when_asked(
    asked: bool, end: str, verdict: Verdict, says: str, judged: Callable[..., Report]
) -> None:
    report = judged({"end": end}, {"steps": "9", "end": ""}, max_steps=3, to_the_end=asked)
    assert report.verdict is verdict, text.render(report)
    assert says in report.says


# --- what voids an answer ------------------------------------------------------------------------


@pytest.mark.train
def test_a_program_that_amplifies_rounding_is_no_pass(judged: Callable[..., Report]) -> None:
    report = judged({"before_step": NEGATED}, {"amplified": "16", "lr": "1e-5"})
    assert report.verdict is Verdict.INCONCLUSIVE, text.render(report)
    assert "had to be allowed" in report.says
    assert AMPLIFIES in " ".join(text.render(report).split())


@pytest.mark.train
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seed": "time.time_ns() % 10**6"}, "initial weights, inputs, random numbers"),
        ({"before_step": "torch.manual_seed(time.time_ns() % 10**6)"}, "random numbers"),
    ],
    ids=["weights and data", "dropout"],
)
def test_a_program_that_is_another_one_every_time(
    changes: dict[str, str], named: str, judged: Callable[..., Report]
) -> None:
    report = judged(both=changes)
    assert report.verdict is Verdict.INCONCLUSIVE, text.render(report)
    assert report.says.startswith(f"the original, run twice, differs from itself: {named}")
    assert report.exit_code == 2


# --- the questions alone -------------------------------------------------------------------------


def noisy(noise: float, **changes: Any) -> Evidence:
    """A migration with ``changes`` beside a twin in which noise has grown to ``noise``."""
    return Evidence(Run().record(), Run(**changes).record(), Run(noise=noise).record())


@pytest.mark.parametrize(("noise", "status"), [(1e-4, Status.FAIL), (0.1, Status.VOID)])
def test_tolerances_have_a_ceiling(noise: float, status: Status) -> None:
    gates = judge(noisy(noise, lr=0.02)).gates
    (gate,) = (gate for gate in gates if gate.key == "trajectory")
    assert gate.status is status, gate
    if status is Status.VOID:
        # Nothing that follows from those numbers fails; the settings, which are exact, do.
        assert {g.key for g in gates if g.status is Status.FAIL} == {"settings"}


def test_numbers_are_told_up_to_where_rounding_carries_them_too_far() -> None:
    plain = noisy(1e-6)
    assert plain.twin is not None
    late = noisy(0.1).twin
    assert late is not None
    steps = (*plain.twin.steps[:2], *late.steps[2:])
    mixed = dataclasses.replace(plain, twin=dataclasses.replace(plain.twin, steps=steps))
    assert horizon(plain) == plain.steps
    assert horizon(mixed) == 2
    assert same_trajectory(mixed).status is Status.VOID
    (gate,) = (gate for gate in judge(mixed, told=2).gates if gate.key == "trajectory")
    assert gate.status is Status.PASS


def test_what_float32_has_told_16_bits_need_not() -> None:
    gates = judge(noisy(0.2, dtype="bfloat16"), evidence()).gates
    assert not [gate for gate in gates if gate.part == NATIVE and gate.status is Status.VOID]


def ended(recording: Recording, **changes: Any) -> Recording:
    rest = Rest(
        ended=True, steps=len(recording.steps), moment=None, models=recording.after[-1], last=None
    )
    return dataclasses.replace(recording, rest=dataclasses.replace(rest, **changes))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({}, {}, "after 4 steps, exit status 0"),
        ({"status": 1}, {"status": 1}, "exit status 1"),
        ({}, {"status": 3}, "exit status 0 before, 3 after"),
        ({}, {"ended": False}, "4 steps before, 4 steps and more after"),
        ({"ended": False}, {}, "4 steps and more before, 4 steps after"),
        ({"ended": False}, {"ended": False}, None),
    ],
)
def test_how_both_end(before: dict[str, Any], after: dict[str, Any], says: str | None) -> None:
    plain = evidence()
    gate = same_end(Evidence(ended(plain.before, **before), ended(plain.after, **after)))
    assert (gate is None) == (says is None)
    assert gate is None or says is None or says in gate.says
    assert gate is None or (gate.status is Status.PASS) == (before == after)


def test_weights_that_are_no_numbers_on_both_sides_do_not_differ() -> None:
    lost = Run(gradient_scale=float("nan")).record()
    assert not all(sketch.is_finite() for sketch in lost.after[-1].params.whole.values())
    gate = same_left_weights(Evidence(ended(lost), ended(lost)))
    assert gate is not None
    assert gate.status is Status.PASS
