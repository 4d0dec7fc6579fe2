"""The memory of a model's parameters is given back: what a rank holds afterwards, before and after.

FSDP1 freed the flat parameters of the units, FSDP2 has each parameter's own part.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import gc
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.utils import _free_storage


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64, bias=False)

    def forward(self, x):
        return self.layer(x).tanh()


def free_model(model):
    for m in model.modules():
        if isinstance(m, FSDP):
            _free_storage(m._handle.flat_param.data)


def held():
    sizes = {}
    for each in gc.get_objects():
        if isinstance(each, torch.Tensor) and type(each) in (torch.Tensor, nn.Parameter):
            if each.numel() >= 2048:
                storage = each.untyped_storage()
                sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(Block(), Block(), nn.Linear(64, 64, bias=False))
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
        device_id=torch.device("cpu"),
        use_orig_params=kind == "original",
    )
    torch.manual_seed(dist.get_rank())
    x = torch.randn(4, 64)
    for step in range(2):
        loss = model(x).square().mean()
        loss.backward()
        print("loss", loss.item())
        model.zero_grad(set_to_none=True)
    if kind == "evaluated":  # parameters are whole until the next backward
        with torch.no_grad():
            print("loss", model(x).square().mean().item())
    del loss
    gc.collect()
    before = held()
    free_model(model)
    gc.collect()
    print("freed", before - held())
    sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # nobody may read the parameters any more


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["flat", "original"])
def test_frees_the_same(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "_free_storage(param.to_local())" in both.after.read_text()
    before = launcher.script(both.before, kind)
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 4
    assert min(after.numbers("freed")) == 3 * 64 * 64 // 2 * 4


def test_whole_parameters_are_freed_with_the_parts(launcher: Launcher, tmp_path: Path) -> None:
    """FSDP1 freed the whole ones and kept the parts."""
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, "evaluated")
    after = launcher.script(both.after, "evaluated", fsdp1="forbid")
    assert before.numbers("loss") == pytest.approx(after.numbers("loss"), rel=1e-5)
    assert min(after.numbers("freed")) >= max(before.numbers("freed"))
