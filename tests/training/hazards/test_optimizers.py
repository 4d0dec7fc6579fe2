"""Optimizers that train nothing, or not all, without an error (FSDP903, FSDP904)."""

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


def tell(model):
    print("layer", model.layers[0].weight.full_tensor().norm().item())
    print("head", model.head.weight.full_tensor().norm().item())


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = Net()
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    BUILD
    for step in range(4):
        model(inputs).pow(2).mean().backward()
        optimizer.step()
        tell(model)
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
"""
STEPS = 4
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
SHARDING = """\
for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)"""
FORWARD = """\
with torch.no_grad():
        print("first", model(inputs).sum().item())"""


def program(*parts: str) -> str:
    return PROGRAM.replace("BUILD", "\n    ".join(parts))


def numbers(text: str, launcher: Launcher, folder: Path) -> dict[str, list[float]]:
    script = folder / "train.py"
    script.write_text(text)
    run = launcher.script(script, fsdp1="forbid")
    return {word: run.numbers(word) for word in ("layer", "head")}


def moves(norms: list[float]) -> bool:
    """Whether a parameter changes from step to step."""
    return len(norms) == len({round(norm, 9) for norm in norms}) == STEPS


def stays(norms: list[float]) -> bool:
    return len(norms) == STEPS and len(set(norms)) == 1


def test_an_optimizer_that_is_built_before_trains_nothing(
    launcher: Launcher, tmp_path: Path
) -> None:
    wrong = program(OPTIMIZER, SHARDING)
    assert codes(wrong) == ["FSDP903"]
    seen = numbers(wrong, launcher, tmp_path)
    assert stays(seen["layer"])
    assert stays(seen["head"])


def test_what_is_mended_trains_all(launcher: Launcher, tmp_path: Path) -> None:
    wrong = program(OPTIMIZER, SHARDING)
    right = mended(wrong)
    assert right == program(SHARDING, OPTIMIZER)
    seen = numbers(right, launcher, tmp_path)
    assert moves(seen["layer"])
    assert moves(seen["head"])


def test_one_that_is_built_behind_a_forward_never_trains_the_root(
    launcher: Launcher, tmp_path: Path
) -> None:
    wrong = program(SHARDING, FORWARD, OPTIMIZER)
    assert codes(wrong) == ["FSDP904"]
    seen = numbers(wrong, launcher, tmp_path)
    assert moves(seen["layer"])
    assert stays(seen["head"]), "the root's own parameters"
    right = mended(wrong)
    assert right == program(SHARDING, FORWARD, "model.reshard()", OPTIMIZER)
    assert codes(right) == []


@pytest.mark.parametrize(
    "parts",
    [
        (SHARDING, OPTIMIZER),
        (SHARDING, OPTIMIZER, FORWARD),
        (SHARDING, FORWARD, "model.reshard()", OPTIMIZER),
        (SHARDING.replace("(model,", "(model, reshard_after_forward=True,"), FORWARD, OPTIMIZER),
        (SHARDING, "model(inputs).sum().backward()", OPTIMIZER, "optimizer.zero_grad()"),
        (OPTIMIZER, SHARDING, OPTIMIZER),
    ],
    ids=("below", "before the forward", "resharded", "put away", "behind a backward", "made anew"),
)
def test_the_mended_program_trains_all(
    launcher: Launcher, tmp_path: Path, parts: tuple[str, ...]
) -> None:
    mended = program(*parts)
    assert codes(mended) == []
    seen = numbers(mended, launcher, tmp_path)
    assert moves(seen["layer"])
    assert moves(seen["head"])
