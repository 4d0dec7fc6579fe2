"""Norms of gradients that are one rank's (FSDP901)."""

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


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    inputs = torch.arange(8.0).view(2, 4) / 3
    SHARDING
    model(inputs).pow(2).sum().backward()
    NORM
    print("norm", float(total))
    dist.destroy_process_group()


main()
"""
SHARDING = "fully_shard(model, mesh=mesh)"
WHOLE = """\
grads = [p.grad for p in model.parameters()]
    total = torch.nn.utils.get_total_norm(grads)"""
LOCAL = """\
total = 0.0
    for p in model.parameters():
        total += p.grad.to_local().pow(2).sum()
    total = total.sqrt()"""
REDUCED = LOCAL.replace("    total = total", "    dist.all_reduce(total)\n    total = total")


def text(sharding: str, norm: str) -> str:
    return PROGRAM.replace("SHARDING", sharding).replace("NORM", norm)


def norms(source: str, launcher: Launcher, folder: Path, ranks: int = 2) -> list[float]:
    """What each rank tells."""
    script = folder / "train.py"
    script.write_text(source)
    run = launcher.script(script, ranks=ranks, fsdp1="forbid")
    return [float(told.split()[-1]) for told in run.output]


def test_a_norm_of_shards_is_too_small_and_another_on_each_rank(
    launcher: Launcher, tmp_path: Path
) -> None:
    whole = norms(text("pass", WHOLE), launcher, tmp_path)[0]
    assert codes(text(SHARDING, LOCAL)) == ["FSDP901"]
    first, second = norms(text(SHARDING, LOCAL), launcher, tmp_path)
    assert max(first, second) < 0.99 * whole
    assert abs(first - second) > 0.01 * whole
    assert (first**2 + second**2) ** 0.5 == pytest.approx(whole)
    print("told", first, second, whole)


@pytest.mark.parametrize(
    "norm", [f"{WHOLE}.full_tensor()", REDUCED], ids=("torch's", "squares of all ranks")
)
def test_the_mended_program_tells_the_norm_of_all(
    launcher: Launcher, tmp_path: Path, norm: str
) -> None:
    assert codes(text(SHARDING, norm)) == []
    whole = norms(text("pass", WHOLE), launcher, tmp_path)[0]
    told = norms(text(SHARDING, norm), launcher, tmp_path)
    assert told == pytest.approx([whole, whole])


@pytest.mark.parametrize("part", ["to_local()", "_local_tensor"])
def test_what_is_written_by_us_tells_it_on_every_rank(
    launcher: Launcher, tmp_path: Path, part: str
) -> None:
    wrong = text(SHARDING, LOCAL.replace("to_local()", part))
    right = mended(wrong)
    assert right == wrong.replace(part, "full_tensor()")
    whole = norms(text("pass", WHOLE), launcher, tmp_path)[0]
    assert norms(right, launcher, tmp_path) == pytest.approx([whole, whole])
