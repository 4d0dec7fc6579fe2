"""Registered methods that ``forward`` calls (FSDP916), and models that are one unit (FSDP917)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes, notes
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def inner(self, x):
        return self.linear(x).relu()

    def forward(self, x):
        FORWARD


dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(Layer(), Layer())
UNITS
try:
    model(torch.arange(8.0).view(2, 4)).pow(2).sum().backward()
    gradient = model[0].linear.weight.grad
    print("told", getattr(gradient, "full_tensor", lambda: gradient)().norm().item())
except RuntimeError as error:
    print("raised", "mixed torch.Tensor and DTensor" in str(error))
dist.destroy_process_group()
"""
REGISTERED = """\
for layer in model:
    fully_shard(layer, mesh=mesh)
    register_fsdp_forward_method(layer, "inner")
fully_shard(model, mesh=mesh)
"""
PLAIN = REGISTERED.replace('    register_fsdp_forward_method(layer, "inner")\n', "")
GOES_ON = "return self.norm(self.inner(x))"
CHOOSES = "return self.inner(x) if self.training else x"
HELD = """\


def count(module, args):
    parameters = model.parameters()
    print("held", float(sum(p.numel() for p in parameters if not isinstance(p, DTensor))))


model[0].linear.register_forward_pre_hook(count)
"""


def source(forward: str, units: str) -> str:
    return PROGRAM.replace("FORWARD", forward).replace("UNITS", units)


def told(text: str, launcher: Launcher, folder: Path, word: str = "told") -> list[float]:
    (folder / "train.py").write_text(text)
    run = launcher.script(folder / "train.py", fsdp1="forbid")
    assert run.output[0].count("raised True") == text.count("RAISES")
    return run.numbers(word)


def test_forward_that_goes_on_finds_shards(launcher: Launcher, tmp_path: Path) -> None:
    wrong = source(GOES_ON, REGISTERED) + "# RAISES\n"
    assert codes(wrong) == ["FSDP916"]
    assert told(wrong, launcher, tmp_path) == []
    right = source(GOES_ON, PLAIN)
    assert codes(right) == []
    alone = told(source(GOES_ON, ""), launcher, tmp_path)
    assert told(right, launcher, tmp_path) == pytest.approx(alone)


def test_forward_that_chooses_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    inner = source(CHOOSES, REGISTERED)
    assert codes(inner) == []
    assert notes(inner) == ["FSDP916"]
    alone = told(source(CHOOSES, ""), launcher, tmp_path)
    assert told(inner, launcher, tmp_path) == pytest.approx(alone)


def test_one_unit_is_gathered_as_a_whole(launcher: Launcher, tmp_path: Path) -> None:
    whole = source(GOES_ON, f"fully_shard(model, mesh=mesh){HELD}")
    assert notes(whole) == ["FSDP917"]
    layers = source(GOES_ON, f"{PLAIN}{HELD}")
    assert notes(layers) == []
    assert told(whole, launcher, tmp_path, "held") == [56.0]
    assert told(layers, launcher, tmp_path, "held") == [28.0]
