"""A forward that writes to parameters: with units around them and without, as with FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(4, 4)
        self.k = nn.Linear(4, 4)
        self.k.requires_grad_(False)

    @torch.no_grad()
    def follow(self):
        for a, b in zip(self.q.parameters(), self.k.parameters()):
            WRITTEN

    def forward(self, x):
        self.follow()
        return self.q(x) - self.k(x) + x


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Net(),
        device_id=torch.device("cpu"),
        use_orig_params=True,
        sharding_strategy=ShardingStrategy.STRATEGY,
        auto_wrap_policy=POLICY,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        loss = model(torch.ones(2, 4)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
DATA = "b.data = b.data * 0.9 + a.data * 0.1"
IN_PLACE = "b.data.mul_(0.9).add_(a.data, alpha=0.1)"
UNITS = "ModuleWrapPolicy({nn.Linear})"


def losses(
    text: str, policy: str, strategy: str, launcher: Launcher, directory: Path
) -> tuple[str, list[float], list[float]]:
    source = PROGRAM.replace("WRITTEN", text).replace("POLICY", policy)
    source = source.replace("STRATEGY", strategy)
    both = written({"train.py": source.encode()}, directory)
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    return both.text(), before, launcher.script(both.after, fsdp1="forbid").numbers("loss")


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
@pytest.mark.parametrize("policy", ["None", UNITS])
def test_data_is_copied(policy: str, strategy: str, launcher: Launcher, tmp_path: Path) -> None:
    text, before, after = losses(DATA, policy, strategy, launcher, tmp_path)
    assert "as it was in FSDP1" in text
    assert after == pytest.approx(before)


@pytest.mark.parametrize("policy", ["None", UNITS])
def test_in_place_it_is_as_it_was(policy: str, launcher: Launcher, tmp_path: Path) -> None:
    text, before, after = losses(IN_PLACE, policy, "FULL_SHARD", launcher, tmp_path)
    assert "TODO" not in text
    assert after == pytest.approx(before)


def test_replicas_kept_it_and_are_marked(launcher: Launcher, tmp_path: Path) -> None:
    text, before, after = losses(IN_PLACE, "None", "NO_SHARD", launcher, tmp_path)
    said = " ".join(text.replace("#", " ").split())
    assert "under NO_SHARD, FSDP1 kept what a forward writes" in said.replace("Under", "under")
    assert before[1:] != pytest.approx(after[1:])
