"""A setting chooses a model, and ``**kwargs`` of its class collects what its wrap is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written
from tests.training.test_handed_dictionaries import SETTINGS

pytestmark = pytest.mark.train

MODELS = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy


class Pair(nn.Module):
    def __init__(self, width, classes, settings: dict = None, scale=1.0, **kwargs):
        super().__init__()
        self.scale = scale * kwargs.get("further", 1.0)
        self.encoder = nn.Sequential(nn.Linear(width, width), nn.GELU())
        self.decoder = nn.Linear(width, classes)
        if settings:
            self.encoder = FSDP(self.encoder, **settings)
            self.decoder = FSDP(self.decoder, **settings)

    def forward(self, x):
        return self.decoder(self.encoder(x)) * self.scale


class Deeper(Pair):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def forward(self, x):
        return super().forward(torch.tanh(x))


class Unused(Pair):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Adapted(nn.Module):
    def __init__(self, width, classes, settings: dict = None, scale=1.0, **kwargs):
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))
        self.head = nn.Linear(width, classes)
        if settings is not None:
            self.head = FSDP(self.head, **settings)
            chosen = kwargs.get("for_adapters", settings)
            self.body = self.wrapped(self.body, chosen)

    def wrapped(self, module, given):
        return FSDP(module, **given)

    def forward(self, x):
        return self.head(self.body(x)) * self.scale


class Alone(nn.Module):
    def __init__(self, width, classes, settings: dict = None, scale=1.0):
        super().__init__()
        self.body = nn.Linear(width, classes)
        if settings:
            self.body = FSDP(self.body, **settings)

    def forward(self, x):
        return self.body(x)


def adapter_options():
    def policy(module, *args, **kwargs):
        return isinstance(module, nn.Linear)

    settings = dict(
        auto_wrap_policy=policy,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    return settings


def create(config, model_cls, settings, **kwargs):
    return model_cls(config["width"], config["classes"], settings, scale=0.5, **kwargs)
"""
TRAIN = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from models import Adapted, Alone, Deeper, adapter_options, create
from settings import set_up

config = {"width": 12, "classes": 4, "model_cls": Deeper}  # Adapted # Alone


def train():
    if config["model_cls"] == Adapted:
        settings = set_up()
        for_adapters = adapter_options()
        settings["use_orig_params"] = True
        settings["auto_wrap_policy"] = None
        torch.manual_seed(3)
        model = create(config, config["model_cls"], settings, for_adapters=for_adapters)
        settings["auto_wrap_policy"] = None
        model = FSDP(model, **settings)
    else:
        settings = set_up()
        settings["auto_wrap_policy"] = None
        torch.manual_seed(3)
        model = create(config, config["model_cls"], settings)
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
    train()
"""


@pytest.mark.parametrize("model", ["Deeper", "Adapted", "Alone"])
def test_trains_the_same_whichever_model_the_setting_names(
    launcher: Launcher, tmp_path: Path, model: str
) -> None:
    """The migration is of the program as it stands; its user changes the setting later."""
    files = {
        "settings.py": SETTINGS,
        "models.py": MODELS,
        "train.py": TRAIN,
    }
    both = written({name: text.encode() for name, text in files.items()}, tmp_path, published=False)
    models = (both.after.parent / "models.py").read_text()
    assert not (both.after.parent / "fsdp2_support.py").exists()
    assert models.count("TODO") == 1
    assert "Nothing here makes Alone" in models
    for script in (both.before, both.after):
        text = script.read_text()
        script.write_text(text.replace('"model_cls": Deeper', f'"model_cls": {model}'))
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-3) == 10
