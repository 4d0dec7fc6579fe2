"""What is done with the parameters of an optimizer that nothing is known about, in a project that
shards models: it may hold sharded ones, and plain ones too."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

MODEL = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(net)
"""
NORM = """\


def norm({given}):
    total = 0.0
    for group in {optimizer}.param_groups:
        for p in group["params"]:
            total += p.grad.norm() ** 2
    dist.all_reduce(total)
    return total
"""


@pytest.mark.parametrize(
    ("given", "optimizer"),
    [("optimizer", "optimizer"), ("trainer", "trainer.optimizer"), ("", "library.optimizer_of(1)")],
)
def test_norms_are_of_this_ranks_parts(given: str, optimizer: str) -> None:
    source = MODEL + "import library\n" + NORM.format(given=given, optimizer=optimizer)
    _, after = migrate({"train.py": source})
    assert "total += own_part(p.grad).norm() ** 2" in after["train.py"]


def test_data_is_copied_in_place() -> None:
    source = MODEL + NORM.format(given="o", optimizer="o").replace(
        "total += p.grad.norm() ** 2", "p.data = p.data * 0.9"
    )
    _, after = migrate({"train.py": source})
    assert "p.data.copy_(p.data * 0.9)" in after["train.py"]


@pytest.mark.parametrize(
    "made",
    [
        "torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1.0)",
        "torch.optim.AdamW(list(torch.nn.Linear(2, 2).parameters()))",
    ],
)
def test_an_optimizer_of_plain_parameters_is_left_alone(made: str) -> None:
    source = MODEL + f"plain = {made}\n" + NORM.format(given="", optimizer="plain")
    _, after = migrate({"train.py": source})
    assert "total += p.grad.norm() ** 2" in after["train.py"]


def test_without_sharded_models_nothing_is_touched() -> None:
    source = NORM.format(given="optimizer", optimizer="optimizer")
    result, after = migrate({"train.py": source})
    assert after["train.py"] == source
    assert not result.decisions
