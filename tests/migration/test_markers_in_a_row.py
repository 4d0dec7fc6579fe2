"""Two statements in a row of which the same is to be said have one marker."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


def train(net, batches, path):
    model = torch.compile(FSDP(net))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    optim_config = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config, optim_config):
        state = model.state_dict()
        BETWEEN
        optimizer_state = FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0:
        torch.save({"model": state, "optimizer": optimizer_state}, path)
"""


@pytest.mark.parametrize(
    ("between", "markers"), [("", 1), ("print(len(state))", 2)], ids=["in a row", "apart"]
)
def test_the_first_says_it(between: str, markers: int) -> None:
    result, after = migrate(
        {"train.py": PROGRAM.replace("        BETWEEN\n", between and (f"        {between}\n"))}
    )
    text = " ".join(after["train.py"].replace("#     ", "").split())
    assert text.count("the names that torch.compile makes") == markers
    reviews = [each for each in result.decisions if each.outcome is Outcome.REVIEW]
    assert len(reviews) == 2


CONTEXT = (
    "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config, optim_config):\n"
)


@pytest.mark.parametrize(
    ("between", "markers"),
    [
        (CONTEXT, 1),
        ("    if path:\n", 2),
        ("    print(len(state))\n" + CONTEXT, 2),
        (CONTEXT + "        print(len(state))\n", 2),
    ],
    ids=["in contexts of their own", "in a branch", "apart", "apart inside"],
)
def test_contexts_are_looked_through(between: str, markers: int) -> None:
    text = PROGRAM.replace("        BETWEEN\n", between)
    text = text.replace("FSDP.optim_state_dict(model, optimizer)", "model.state_dict()")
    _, after = migrate({"train.py": text})
    text = " ".join(after["train.py"].replace("#     ", "").split())
    assert text.count("the names that torch.compile makes") == markers
