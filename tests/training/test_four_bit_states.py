"""A function that asks a model for its state: one that is sharded, or one of 4 bits that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

# What bitsandbytes and peft do, as far as it matters here.
FOUR_BITS = """\
import torch


class Linear4bit(torch.nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "weight.absmax"] = torch.ones(1)
"""
PEFT = """\
def get_peft_model_state_dict(model, state_dict=None):
    return dict(model.state_dict() if state_dict is None else state_dict)
"""
PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from bitsandbytes.nn import Linear4bit
from peft import get_peft_model_state_dict
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(small):
    if small:
        return nn.Sequential(Linear4bit(4, 4))
    return FSDP(nn.Sequential(nn.Linear(4, 4)), device_id=torch.device("cpu"))


def show(model):
    state = get_peft_model_state_dict(model)
    if dist.get_rank() == 0:
        for name in sorted(state):
            print("loss", state[name].sum().item(), flush=True)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = build(sys.argv[1] == "small")
show(model)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("kind", "numbers"), [("small", 3), ("sharded", 2)])
def test_either_gives_its_state(
    kind: str, numbers: int, launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "isinstance(model, FSDPModule)" in both.text()
    runs = []
    for version in (both.before, both.after):
        (version.parent / "peft.py").write_text(PEFT)
        (version.parent / "bitsandbytes").mkdir()
        (version.parent / "bitsandbytes" / "__init__.py").write_text("")
        (version.parent / "bitsandbytes" / "nn.py").write_text(FOUR_BITS)
        runs.append(launcher.script(version, kind))
    assert compare(*runs, tolerance=1e-6) == numbers
