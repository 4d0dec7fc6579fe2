"""Weights that are not what the program put there (FSDP907, FSDP908)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import set_model_state_dict, StateDictOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(1.0, 5.0), persistent=False)

    def forward(self, x):
        return self.head(x) * self.table
METHODS

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
plain = Net()
inputs = torch.ones(2, 4)
right = plain(inputs).sum().item()
BUILD
print("gives", model(inputs).sum().item())
print("right", right)
dist.destroy_process_group()
"""
META = """\
with torch.device("meta"):
    model = Net()
fully_shard(model, mesh=mesh)
model.to_empty(device="cpu")"""
# What memory holds is chance: here, a number that nobody takes for a weight.
DIRTY = """\
torch.utils.deterministic.fill_uninitialized_memory = True
torch.use_deterministic_algorithms(True)
"""
LOADED = """
options = StateDictOptions(full_state_dict=True)
set_model_state_dict(model, plain.state_dict(), options=options)"""
COMPUTED = "\nmodel.compute()"
METHOD = """\

    def compute(self):
        self.table = torch.arange(1.0, 5.0)
"""
SHARDED = """\
model = plain
fully_shard(model, mesh=mesh)"""
ASSIGNED = """
for p in model.parameters():
    p.data = p.data * 0"""
WRITTEN = """
with torch.no_grad():
    for p in model.parameters():
        p.mul_(0)"""


def program(build: str, methods: str = "") -> str:
    return PROGRAM.replace("BUILD", build).replace("METHODS", methods)


def numbers(source: str, launcher: Launcher, folder: Path) -> tuple[float, float]:
    """What the model gives, and what it should give."""
    script = folder / "train.py"
    script.write_text(source)
    run = launcher.script(script, fsdp1="forbid")
    (gives,), (right,) = run.numbers("gives"), run.numbers("right")
    return gives, right


@pytest.mark.parametrize(
    "behind", ["", LOADED], ids=("nothing is filled", "a checkpoint has no such buffer")
)
def test_a_model_of_empty_memory(launcher: Launcher, tmp_path: Path, behind: str) -> None:
    wrong = program(DIRTY + META + behind)
    assert codes(wrong) == ["FSDP907"]
    gives, right = numbers(wrong, launcher, tmp_path)
    print("gives", gives, "right", right)
    assert gives != pytest.approx(right)


def test_the_mended_program_has_both(launcher: Launcher, tmp_path: Path) -> None:
    mended = program(DIRTY + META + LOADED + COMPUTED, METHOD)
    assert codes(mended) == []
    gives, right = numbers(mended, launcher, tmp_path)
    assert gives == pytest.approx(right)


def test_assigned_data_changes_nothing(launcher: Launcher, tmp_path: Path) -> None:
    wrong = program(SHARDED + ASSIGNED)
    assert codes(wrong) == ["FSDP908"]
    gives, right = numbers(wrong, launcher, tmp_path)
    print("gives", gives, "right", 0.0)
    assert gives == pytest.approx(right), "the model before"
    assert abs(right) > 1


@pytest.mark.parametrize(
    "build",
    [SHARDED + WRITTEN, SHARDED.replace("fully_shard", ASSIGNED[1:] + "\nfully_shard")],
    ids=("written in place", "assigned above fully_shard"),
)
def test_what_is_written_is_computed_with(launcher: Launcher, tmp_path: Path, build: str) -> None:
    mended = program(build)
    assert codes(mended) == []
    assert numbers(mended, launcher, tmp_path)[0] == 0.0
