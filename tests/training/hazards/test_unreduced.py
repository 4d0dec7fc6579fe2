"""Parameters that each rank trains by itself (FSDP905, FSDP906)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes, mended
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.head(x)


def whole(weight):
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Net()
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    ROOT
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        model(inputs).pow(2).mean().backward()
        REDUCTION
        optimizer.step()
        optimizer.zero_grad()
    print("layer", whole(model.layers[0].weight).norm().item())
    print("head", whole(model.head.weight).norm().item())
    dist.destroy_process_group()


main()
"""
ROOT = "fully_shard(model, mesh=mesh)"
IGNORING = "fully_shard(model, mesh=mesh, ignored_params=set(model.head.parameters()))"
REDUCTION = """\
for p in model.head.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())"""


def program(root: str, reduction: str = "pass") -> str:
    return PROGRAM.replace("ROOT", root).replace("REDUCTION", reduction)


def told(source: str, launcher: Launcher, folder: Path) -> dict[str, list[float]]:
    """The norms at the end, by rank."""
    script = folder / "train.py"
    script.write_text(source)
    run = launcher.script(script, fsdp1="forbid")
    lines = [line.split() for text in run.output for line in text.splitlines()]
    return {word: [float(n) for name, n in lines if name == word] for word in ("layer", "head")}


@pytest.mark.parametrize(
    ("root", "code"),
    [("pass", "FSDP905"), (IGNORING, "FSDP906")],
    ids=("no call on the root", "ignored parameters"),
)
def test_ranks_drift_apart(launcher: Launcher, tmp_path: Path, root: str, code: str) -> None:
    assert codes(program(root)) == [code]
    seen = told(program(root), launcher, tmp_path)
    assert seen["layer"][0] == pytest.approx(seen["layer"][1], rel=1e-6)
    first, second = seen["head"]
    print("heads", first, second)
    assert abs(first - second) > 0.03, "each rank has a head of its own"


@pytest.mark.parametrize(
    ("root", "reduction"),
    [(ROOT, "pass"), (IGNORING, REDUCTION), ("pass", REDUCTION)],
    ids=("a call on the root", "a reduction of what is ignored", "a reduction without a root"),
)
def test_the_mended_program_keeps_ranks_together(
    launcher: Launcher, tmp_path: Path, root: str, reduction: str
) -> None:
    right = program(root, reduction)
    assert codes(right) == []
    seen = told(right, launcher, tmp_path)
    assert seen["layer"][0] == pytest.approx(seen["layer"][1], rel=1e-6)
    assert seen["head"][0] == pytest.approx(seen["head"][1], rel=1e-6)
    print("heads", seen["head"])


def test_the_call_that_is_added_keeps_ranks_together(launcher: Launcher, tmp_path: Path) -> None:
    right = mended(program("pass"))
    assert right == program(f"pass\n    {ROOT}")
    seen = told(right, launcher, tmp_path)
    assert seen["head"][0] == pytest.approx(seen["head"][1], rel=1e-6)


@pytest.mark.parametrize("other", ["mesh=init_device_mesh('cpu', (2,))", "reshard_after_forward=2"])
def test_units_that_are_not_given_names_alone(other: str) -> None:
    wrong = program("pass").replace("(layer, mesh=mesh)", f"(layer, {other})")
    assert codes(wrong) == ["FSDP905"]
    assert ("fully_shard(model" in mended(wrong)) is ("reshard" in other)
