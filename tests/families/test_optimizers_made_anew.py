"""An optimizer for models that are not sharded, made anew where one is, holds nothing back."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(args, model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    {before}
    if args.fsdp:
        model = FSDP(model)
        {behind}
    return train(model, optimizer)
"""
ANEW = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)"


def outcomes(before: str, behind: str) -> set[Outcome]:
    result, _ = migrate({"a.py": PROGRAM.format(before=before, behind=behind)})
    return {d.outcome for d in result.decisions}


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("pass", ANEW),
        ("print(args)", f"{ANEW}\n        print(optimizer)"),
        (
            "schedule = Schedule(optimizer)",
            f"{ANEW}\n        schedule = Other(optimizer)",
        ),
        (
            "schedule = Schedule(optimizer)\n    both = (schedule, 1)",
            f"{ANEW}\n        schedule = Other(optimizer)\n        both = (schedule, 2)",
        ),
        ("pass", f"args.seen = 1\n        {ANEW}"),
    ],
)
def test_one_that_is_made_anew(before: str, behind: str) -> None:
    assert outcomes(before, behind) == {Outcome.REWRITTEN}


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("pass", "pass"),
        ("pass", f"if args.late:\n            {ANEW}"),
        ("schedule = Schedule(optimizer)", ANEW),
        ("args.optimizer = optimizer", ANEW),
        ("args.steps[0] = optimizer.step", ANEW),
        (
            "schedule = Schedule(optimizer)\n    both = (schedule, 1)",
            f"{ANEW}\n        schedule = 0",
        ),
    ],
)
def test_one_that_something_still_holds(before: str, behind: str) -> None:
    assert Outcome.LEFT in outcomes(before, behind)
