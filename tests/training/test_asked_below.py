"""A function that asks for a state of the kind that its callers' contexts say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def some_of(model, names):
    if not names:
        return model.state_dict()
    return {k: v for k, v in model.state_dict().items() if k in names}


def put_back(model, state, strict):
    try:
        model.load_state_dict(state, strict=strict)
    except RuntimeError:
        model.load_state_dict(state, strict=False)


def save(model, optimizer, kind, names=()):
    if kind == "full":
        first = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        optim = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, first, optim):
            state = {"model": some_of(model, names)}
            state["optimizer"] = FSDP.optim_state_dict(model, optimizer)
            DIRECT
    else:
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = {"model": some_of(model, names)}
            state["optimizer"] = FSDP.optim_state_dict(model, optimizer)
    return state


def load(model, optimizer, kind, state):
    if kind == "full":
        box = [state["model"], state["optimizer"]]
        dist.broadcast_object_list(box, src=0)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            put_back(model, box[0], True)
            flat = FSDP.optim_state_dict_to_load(model, optimizer, box[1])
            optimizer.load_state_dict(flat)
    else:
        with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            put_back(model, state["model"], True)
            flat = FSDP.optim_state_dict_to_load(model, optimizer, state["optimizer"])
            optimizer.load_state_dict(flat)


def step(model, optimizer):
    loss = model(torch.ones(2, 4) + dist.get_rank()).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    step(model, optimizer)
    state = save(model, optimizer, kind)
    kinds = {type(v).__name__.replace("ShardedTensor", "DTensor") for v in state["model"].values()}
    biases = save(model, optimizer, kind, ("0.bias",))
    print("saved", sorted(kinds), len(state["model"]), len(biases["model"]))
    step(model, optimizer)
    load(model, optimizer, kind, state)
    step(model, optimizer)
    step(model, optimizer)
    dist.destroy_process_group()


main(*sys.argv[1:])
"""
DIRECT = {
    "by the function alone": "",
    "beside a state asked for in the block": 'print("whole", len(model.state_dict()))',
}


@pytest.mark.parametrize("direct", DIRECT.values(), ids=DIRECT)
@pytest.mark.parametrize("kind", ["full", "shard"])
def test_each_caller_gets_the_kind_that_its_context_says(
    kind: str, direct: str, launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.replace("DIRECT", direct).encode()}, tmp_path)
    before = launcher.script(both.before, kind, fsdp1="allow")
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 8
    text = both.after.read_text()
    assert text.count("with state_dict_type(") == 4
