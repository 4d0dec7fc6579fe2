"""A model trains after migration on the device that it was given, here the CPU, however spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

HEAD = """\
import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
CONFIG = {"device": DEVICE, "strategy": "NO_SHARD", "hybrid": "HYBRID_SHARD"}
torch.cpu.device_count = lambda: 2  # with one device a node FSDP1 does not reduce across nodes


@dataclass
class Config:
    device: str = "cpu"


class Trainer:
    def __init__(self, local_rank):
        here = torch.cuda.is_available()
        self.device = torch.device("cuda", local_rank) if here else torch.device("cpu")


def pick(local_rank):
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def by_name(name):
    return torch.device(name)


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)))


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.full((2, 4), 1.0 + dist.get_rank())).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())


"""
TAIL = """\


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    rank = dist.get_rank()
    config, trainer = Config(), Trainer(local_rank)
    group = dist.new_group([0, 1])
    named = torch.device(DEVICE)
{models}    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
GIVEN = (
    "torch.device(DEVICE)",
    "named",
    "DEVICE",
    'torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")',
    "torch.cuda.current_device() if torch.cuda.is_available() else torch.device('cpu')",
    "pick(local_rank)",
    "by_name(args.device)",
    "args.device",
    "torch.device(args.device)",
    "torch.device(config.device)",
    'torch.device(CONFIG["device"])',
    "trainer.device",
)
NOT_GIVEN = ("None", "local_rank", "rank % 8", "torch.device(local_rank)")
# What else a model is given, so that it needs a mesh or not.
NEEDED = {
    "full": "",
    "none": "sharding_strategy=ShardingStrategy.NO_SHARD, ",
    "hybrid": (
        "sharding_strategy=ShardingStrategy.HYBRID_SHARD, "
        "auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), "
    ),
    "group": "process_group=group, ",
    "hybrid by name": (
        'sharding_strategy=ShardingStrategy[CONFIG["hybrid"]], '
        "auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), "
    ),
    "by name": 'sharding_strategy=ShardingStrategy[CONFIG["strategy"]], ',
    "by keywords": "**dict(use_orig_params=True), ",
}


def program(needed: str, given: tuple[str, ...]) -> bytes:
    text = "".join(f"    train(FSDP(net(), {needed}device_id={each}))\n" for each in given)
    return (HEAD + TAIL.format(models=text)).encode()


@pytest.mark.parametrize("needed", NEEDED)
def test_a_device_that_is_given_is_trained_on(
    needed: str, launcher: Launcher, tmp_path: Path
) -> None:
    pair = written({"train.py": program(NEEDED[needed], GIVEN)}, tmp_path)
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert compare(before, after) == 2 * 3 * len(GIVEN)


@pytest.mark.parametrize("needed", ["full", "none", "hybrid", "group", "by name", "hybrid by name"])
def test_a_device_that_only_the_machine_has_is_not_asked_for(
    needed: str, launcher: Launcher, tmp_path: Path
) -> None:
    """FSDP1 takes no index, and not nothing, where there is no accelerator: there is no before."""
    pair = written({"train.py": program(NEEDED[needed], NOT_GIVEN)}, tmp_path / "index")
    given = ("named",) * len(NOT_GIVEN)
    other = written({"train.py": program(NEEDED[needed], given)}, tmp_path / "device")
    before, after = launcher.script(other.before), launcher.script(pair.after)
    assert compare(before, after) == 2 * 3 * len(given)
