"""Numbers that are read of DTensors which are not reduced (FSDP902), and replicas that are counted
twice (FSDP901)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes, mended
from tests.training.hazards.test_norms import SHARDING, WHOLE, norms, text
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

ADDED = """\
total = 0.0
    for p in model.parameters():
        total += p.grad.norm().item() ** 2
    total = total**0.5"""
LARGEST = "total = max(p.grad.abs().max().item() for p in model.parameters())"
CLIPPED = """\
norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0, norm_type=float("inf"))
    total = norm.item()"""
READS = {"norms are added up": ADDED, "the largest": LARGEST, "an infinite norm": CLIPPED}
REPLICATED = """\
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)"""
SQUARES = """\
total = 0.0
    for p in model.parameters():
        total += p.grad.to_local().pow(2).sum()
    dist.all_reduce(total)
    total = total.sqrt()"""


@pytest.mark.parametrize("how", READS)
def test_item_reads_one_ranks_number(launcher: Launcher, tmp_path: Path, how: str) -> None:
    wrong = text(SHARDING, READS[how])
    assert codes(wrong) == ["FSDP902"]
    right = mended(wrong)
    assert ".full_tensor().item()" in right
    assert codes(right) == []
    whole = norms(text("pass", READS[how]), launcher, tmp_path)[0]
    first, second = norms(wrong, launcher, tmp_path)
    print("told", first, second, whole)
    assert abs(first - second) > 0.5 * whole
    assert norms(right, launcher, tmp_path) == pytest.approx([whole, whole])


def test_replicas_are_counted_twice(launcher: Launcher, tmp_path: Path) -> None:
    wrong = text(REPLICATED, SQUARES)
    assert codes(wrong) == ["FSDP901"]
    right = wrong.replace("all_reduce(total)", 'all_reduce(total, group=mesh.get_group("shard"))')
    assert codes(right) == []
    whole = norms(text("pass", WHOLE), launcher, tmp_path)[0]
    assert norms(right, launcher, tmp_path, 4) == pytest.approx([whole] * 4)
    assert norms(wrong, launcher, tmp_path, 4) == pytest.approx([whole * 2**0.5] * 4)
