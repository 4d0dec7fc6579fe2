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
        ("trainer: object = Trainer(optimizer)", f"{ANEW}\n        trainer = 0"),
    ],
)
def test_one_that_is_made_anew(before: str, behind: str) -> None:
    assert outcomes(before, behind) == {Outcome.REWRITTEN}


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        ("pass", f"if args.late:\n            {ANEW}"),
        ("schedule = Schedule(optimizer)", ANEW),
        ("args.optimizer = optimizer", ANEW),
        ("args.steps[0] = optimizer.step", ANEW),
        ("trainer: object = Trainer(optimizer)", ANEW),
        ("trainer = log = Trainer(optimizer)", f"{ANEW}\n        trainer = 0"),
        ("pass", f"schedule = Schedule(optimizer)\n        {ANEW}"),
        ("schedule = Schedule(optimizer)", f"schedule = Other(optimizer)\n        {ANEW}"),
        ("pass", f"args.keep(optimizer)\n        {ANEW}"),
        (
            "schedule = Schedule(optimizer)\n    both = (schedule, 1)",
            f"{ANEW}\n        schedule = 0",
        ),
    ],
)
def test_one_that_something_still_holds(before: str, behind: str) -> None:
    assert Outcome.LEFT in outcomes(before, behind)


@pytest.mark.parametrize(
    "before",
    [
        "args.keep(optimizer)",
        "if args.resume:\n        load(args, optimizer)",
        "schedule = Schedule(optimizer)\n    load(args, schedule=schedule)",
        "for each in watch(optimizer):\n        pass",
    ],
)
def test_what_was_given_the_first_one_is_named(before: str) -> None:
    behind = f"{ANEW}\n        schedule = None"
    result, after = migrate({"a.py": PROGRAM.format(before=before, behind=behind)})
    (found,) = [d for d in result.decisions if d.code == "FSDP403"]
    assert found.outcome is Outcome.REVIEW
    assert "trains nothing" in after["a.py"].replace("\n    #     ", " ")
