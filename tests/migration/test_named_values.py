"""What a function would write twice gets a name, where one place comes before the others."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
import torch
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

FULL = StateDictType.FULL_STATE_DICT
MODEL = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
OPTIMIZER = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)


def make(net):
    model = FSDP(net)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


"""
GIVEN = "FullStateDictConfig(), FullOptimStateDictConfig(offload_to_cpu=False)"
BOUND = "options = StateDictOptions(full_state_dict=True, cpu_offload=True)"
SAVES = """\
def run(net, rank):
    model, optimizer = make(net)
    train(model, optimizer)
    with FSDP.state_dict_type(model, FULL, MODEL, OPTIMIZER):
        state = model.state_dict()
        optimizer_state = FSDP.optim_state_dict(model, optimizer)
    if rank == 0:
        torch.save({"model": state, "optimizer": optimizer_state}, "saved.pt")
"""
TWICE = """\
def run(net, rank):
    model, optimizer = make(net)
    train(model, optimizer)
    with FSDP.state_dict_type(model, FULL, MODEL, OPTIMIZER):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, "model.pt")
    with FSDP.state_dict_type(model, FULL, MODEL, OPTIMIZER):
        optimizer_state = FSDP.optim_state_dict(model, optimizer)
    if rank == 0:
        torch.save(optimizer_state, "optimizer.pt")
"""
BRANCHES = """\
def run(net, rank, only_model):
    model, optimizer = make(net)
    train(model, optimizer)
    if only_model:
        with FSDP.state_dict_type(model, FULL, MODEL, OPTIMIZER):
            state = model.state_dict()
    else:
        with FSDP.state_dict_type(model, FULL, MODEL, OPTIMIZER):
            state = FSDP.optim_state_dict(model, optimizer)
    if rank == 0:
        torch.save(state, "saved.pt")
"""
RESUMED = """\
def run(net, rank):
    model, optimizer = make(net)
    with FSDP.state_dict_type(model, FULL):
        model.load_state_dict(torch.load("model.pt"))
    train(model, optimizer)
    with FSDP.state_dict_type(model, FULL):
        torch.save(model.state_dict(), f"model.{rank}.pt")
"""


def emitted(text: str) -> str:
    return rewritten(HEAD + text)


@pytest.mark.parametrize("text", [SAVES, TWICE], ids=["together", "one after the other"])
def test_named(text: str) -> None:
    new = emitted(text)
    assert new.count("StateDictOptions(") == 1
    assert f"    {BOUND}\n    state = get_model_state_dict(model, options=options)\n" in new
    named = "    optimizer_state = get_optimizer_state_dict(model, optimizer, options=options)\n"
    assert named in new


@pytest.mark.parametrize(
    "text",
    [
        BRANCHES,
        RESUMED,
        SAVES.replace("net, rank", "net, rank, options").replace("train(", "train(options, "),
        SAVES.replace("    if rank", "    print(options)\n    if rank"),
        SAVES.replace("rank):\n", "rank):\n    global options\n    options = 1\n"),
    ],
    ids=["branches", "loaded and saved", "a parameter's name", "a global one", "declared"],
)
def test_not_named(text: str) -> None:
    assert "options=options" not in emitted(text)


def test_bound_anew() -> None:
    """For other states further down, which are read by every rank."""
    again = SAVES.partition("train(model, optimizer)\n")[2]
    again = again.replace("MODEL, OPTIMIZER", GIVEN).replace("if rank == 0:", "if True:")
    new = emitted(SAVES + again)
    assert new.count("StateDictOptions(") == 2
    assert new.count(", options=options)") == 4


def test_in_a_loop() -> None:
    """A name keeps its value for what is read in the next round."""
    loop = """\
def run(net, rank):
    model, optimizer = make(net)
    train(model, optimizer)
    with FSDP.state_dict_type(model, FULL, MODEL, OPTIMIZER):
        state = model.state_dict()
    if rank == 0:
        torch.save(state, "first.pt")
    for epoch in range(3):
        with FSDP.state_dict_type(model, FULL, MODEL, OPTIMIZER):
            optimizer_state = FSDP.optim_state_dict(model, optimizer)
        if rank == 0:
            torch.save(optimizer_state, "optimizer.pt")
        with FSDP.state_dict_type(model, FULL, GIVEN):
            torch.save(model.state_dict(), f"model.{rank}.pt")
            torch.save(FSDP.optim_state_dict(model, optimizer), f"optimizer.{rank}.pt")
"""
    new = emitted(loop.replace("GIVEN", GIVEN))
    assert BOUND in new
    assert new.count("StateDictOptions(full_state_dict=True)") == 2
