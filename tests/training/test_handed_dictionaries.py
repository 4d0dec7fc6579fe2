"""A function makes settings, its caller changes one, and a class out of a table gets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

SETTINGS = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy


def set_up():
    dist.init_process_group("gloo")
    precision = MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16
    )
    settings = dict(
        auto_wrap_policy=size_based_auto_wrap_policy,
        mixed_precision=precision,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
        cpu_offload=CPUOffload(offload_params=False),
        device_id=torch.device("cpu"),
    )
    return settings
"""
MODELS = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Pair(nn.Module):
    def __init__(self, width, classes, settings: dict = None, scale=1.0, **kwargs):
        super().__init__()
        self.scale = scale
        self.encoder = nn.Sequential(nn.Linear(width, width), nn.GELU())
        self.decoder = nn.Linear(width, classes)
        if settings:
            self.encoder = FSDP(self.encoder, **settings)
            self.decoder = FSDP(self.decoder, **settings)

    def forward(self, x):
        return self.decoder(self.encoder(x)) * self.scale


class Single(nn.Module):
    def __init__(self, width, classes, settings: dict = None, scale=1.0):
        super().__init__()
        self.scale = scale
        self.register_buffer("shift", torch.linspace(0, 1, width))
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        if settings is not None:
            self.body = FSDP(self.body, **settings)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x) + self.shift)) * self.scale


def create(config, model_cls, settings, **kwargs):
    return model_cls(config["width"], config["classes"], settings, scale=0.5, **kwargs)
"""
TRAIN = """\
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

from models import Pair, Single, create
from settings import set_up

SMALL = {"width": 12, "classes": 4, "model_cls": Pair}
OTHER = {"width": 8, "classes": 3, "model_cls": Single}


def train(config):
    settings = set_up()
    settings["auto_wrap_policy"] = None
    settings["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP
    torch.manual_seed(3)
    model = create(config, config["model_cls"], settings)
    settings["auto_wrap_policy"] = None
    model = FSDP(model, **settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        x = torch.randn(8, config["width"])
        y = torch.randint(0, config["classes"], (8,))
        loss = torch.nn.functional.cross_entropy(model(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    train(SMALL if sys.argv[1] == "pair" else OTHER)
"""


@pytest.mark.parametrize("model", ["pair", "single"])
def test_trains_the_same(launcher: Launcher, tmp_path: Path, model: str) -> None:
    files = {"settings.py": SETTINGS, "models.py": MODELS, "train.py": TRAIN}
    both = written({name: text.encode() for name, text in files.items()}, tmp_path)
    models = (both.after.parent / "models.py").read_text()
    assert models.count('mp_policy=settings["mixed_precision"]') == 3
    assert not (both.after.parent / "fsdp2_support.py").exists()
    assert "auto_wrap_policy" not in both.text()
    before = launcher.script(both.before, model, fsdp1="allow")
    after = launcher.script(both.after, model, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-3) == 10
