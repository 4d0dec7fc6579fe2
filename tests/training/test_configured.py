"""Models that hydra has wrapped by a function which a configuration names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.commandline import Command
from tests.training.programs import Launcher, compare

pytestmark = pytest.mark.train

WRAPPING = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shard(model, device, use_orig_params=False):
    return FSDP(model, device_id=device, use_orig_params=use_orig_params)
"""
TRAIN = """\
from types import SimpleNamespace

import hydra
import torch
import torch.distributed as dist
from torch import nn


def main(cfg):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    model = hydra.utils.instantiate(cfg.wrapper, CALLED)
    decayed = [p for n, p in model.named_parameters() if "bias" not in n]
    others = [p for n, p in model.named_parameters() if "bias" in n]
    groups = [{"params": decayed, "weight_decay": 9.0}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=0.05)
    for step in range(4):
        loss = model(torch.ones(2, 4)).add(1).pow(2).mean()
        loss.backward()
        model.clip_grad_norm_(0.5)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    state = model.state_dict()
    print("whole", [tuple(value.shape) for value in state.values()])
    dist.destroy_process_group()


main(SimpleNamespace(wrapper={"_target_": "wrapping.shard", "use_orig_params": ORIGINAL}))
"""
CONFIG = """\
wrapper:
  _target_: wrapping.shard
  use_orig_params: ORIGINAL
"""
# As much of hydra as the program needs.
HYDRA = """\
import importlib


def instantiate(config, *args, **kwargs):
    module, _, name = config["_target_"].rpartition(".")
    settings = {key: value for key, value in config.items() if key != "_target_"}
    return getattr(importlib.import_module(module), name)(*args, **{**settings, **kwargs})
"""
MARKER = "TODO(fsdp-migrate FSDP408): Without use_orig_params=True FSDP1 had one flat parameter"
BY_NAME, BY_PLACE = 'model=net, device=torch.device("cpu")', 'net, torch.device("cpu")'


def program(directory: Path, run: Command, original: str, called: str) -> tuple[Path, Path]:
    """The program as it was, and as it is migrated."""
    before, after = directory / "before", directory / "after"
    (before / "conf").mkdir(parents=True)
    (before / "pyproject.toml").write_text("")
    (before / "wrapping.py").write_text(WRAPPING)
    text = TRAIN.replace("ORIGINAL", original).replace("CALLED", called)
    (before / "train.py").write_text(text)
    (before / "conf/config.yaml").write_text(CONFIG.replace("ORIGINAL", original))
    shutil.copytree(before, after)
    run("rewrite", after)
    for each in (before, after):
        (each / "hydra").mkdir()
        (each / "hydra/__init__.py").write_text("from hydra import utils\n")
        (each / "hydra/utils.py").write_text(HYDRA)
    return before / "train.py", after / "train.py"


@pytest.mark.parametrize("called", [BY_NAME, BY_PLACE])
def test_it_trains_and_saves_as_before(
    launcher: Launcher, tmp_path: Path, run: Command, called: str
) -> None:
    before, after = program(tmp_path, run, "True", called)
    assert "get_model_state_dict" in after.read_text()
    assert compare(launcher.script(before), launcher.script(after)) >= 4


def test_names_that_met_no_flat_parameter_are_marked(
    launcher: Launcher, tmp_path: Path, run: Command
) -> None:
    before, after = program(tmp_path, run, "False", BY_NAME)
    said = " ".join(after.read_text().replace("#", "").split())
    assert MARKER in said
    old, new = launcher.script(before), launcher.script(after)
    assert old.numbers("loss")[0] == pytest.approx(new.numbers("loss")[0], rel=1e-6)
    assert old.numbers("loss") != pytest.approx(new.numbers("loss"), rel=1e-3)
    assert old.output[0].splitlines()[-1] == new.output[0].splitlines()[-1]  # the whole state
