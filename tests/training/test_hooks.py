"""Pre-hooks on a model that casts its inputs see them as the program gives them."""

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
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def centred(module, args):
    return (args[0] - args[0].mean(),)


def told(module, args, kwargs):
    return args, {**kwargs, "offset": kwargs["offset"] - 1000.0}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4))
        self.head = nn.Linear(4, 1)

    def forward(self, x, offset):
        return self.head(self.body(x)) + offset


def main(how):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    if how == "before the wrap":
        net.register_forward_pre_hook(centred)
    mixed = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}),
        device_id=torch.device("cpu"),
        mixed_precision=mixed,
        use_orig_params=True,
    )
    if how == "one":
        model.register_forward_pre_hook(centred)
    elif how == "of keywords":
        model.register_forward_pre_hook(told, with_kwargs=True)
    elif how == "inner":
        model.module.register_forward_pre_hook(centred)
    elif how == "in front":
        model.register_forward_pre_hook(centred, prepend=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.arange(8.0).view(2, 4) / 7 + dist.get_rank() + 100.3
    for step in range(3):
        loss = model(inputs, offset=torch.tensor(1000.7)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""
HOOKS = ("one", "of keywords", "inner", "in front", "before the wrap")


@pytest.mark.parametrize("how", HOOKS)
def test_they_see_what_fsdp1s_saw(how: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, how, fsdp1="allow")
    after = launcher.script(both.after, how, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 6


def test_behind_the_cast_they_lose_precision(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "(centred, prepend=True)" in both.text()
    both.after.write_text(both.text().replace(", prepend=True", ""))
    before = launcher.script(both.before, "one", fsdp1="allow")
    naive = launcher.script(both.after, "one", fsdp1="forbid")
    assert before.numbers("loss") != pytest.approx(naive.numbers("loss"), rel=1e-4)
