"""Facts about a whole program: files that say nothing of FSDP1 and are only imported count."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from tests.training.programs import Launcher, compare

MODELS = """\
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(self.inner(x).tanh())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


MODELS = {}


def register(cls):
    MODELS[cls.__name__] = cls


def build(name):
    return MODELS[name]()


register(Net)
"""
TRAIN = """\
import functools
import json
import os

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy

import models


def wrap(net, **kwargs):
    return FSDP(net, **kwargs)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    settings = json.loads(os.environ.get("SETTINGS", "{}"))
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=20)
    model = wrap(
        models.build("Net"),
        auto_wrap_policy=policy,
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        **settings,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.arange(16.0).view(4, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = (model(inputs).float() - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""
EVALUATION = """\
import torch


def evaluate(network, inputs):
    with torch.no_grad():
        return network(inputs)


class Evaluator:
    def __init__(self, network):
        self.network = network

    @torch.no_grad()
    def run(self, inputs):
        return self.network(inputs)


def describe(network):
    print(type(network).__name__)
"""
LOOP = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from evaluation import Evaluator, describe, evaluate


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
        CALL
        total = torch.tensor(sum(p.norm().item() ** 2 for p in model.parameters()))
        dist.all_reduce(total)
        print("norm", total.item())
    dist.destroy_process_group()


main()
"""
CALLS = ("evaluate(model, inputs)", "Evaluator(model).run(inputs)")


def both(tree: Path, files: dict[str, str]) -> tuple[Path, Path]:
    """The program before and after, found in a directory as a user's is."""
    for version in ("before", "after"):
        (tree / version).mkdir()
        for name, text in files.items():
            (tree / version / name).write_text(text)
    result = session.run([tree / "after"]).result
    assert not result.problems
    assert {path.name for path in result.changes} <= {"train.py", "fsdp2_support.py"}
    for path, data in result.changes.items():
        path.write_bytes(data)
    return tree / "before" / "train.py", tree / "after" / "train.py"


@pytest.mark.train
def test_layers_of_a_file_that_is_not_read(launcher: Launcher, tmp_path: Path) -> None:
    before, after = both(tmp_path, {"models.py": MODELS, "train.py": TRAIN})
    assert "BatchNorm" in (after.parent / "fsdp2_support.py").read_text()
    old, new = launcher.script(before, fsdp1="allow"), launcher.script(after, fsdp1="forbid")
    assert compare(old, new, tolerance=1e-4) == 6


def test_layers_that_no_file_of_the_program_has(tmp_path: Path) -> None:
    plain = MODELS.replace("nn.BatchNorm1d(4)", "nn.LayerNorm(4)")
    files = {"models.py": plain, "train.py": TRAIN, "vision.py": MODELS}  # which nothing imports
    _, after = both(tmp_path, files)
    assert "BatchNorm" not in (after.parent / "fsdp2_support.py").read_text()


GIVEN = """\
import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import lambda_auto_wrap_policy


def shard_model(model):
    return FSDP(
        model,
        auto_wrap_policy=functools.partial(
            lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.blocks
        ),
        device_id=torch.device("cpu"),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16),
    )
"""
CALLER = """\
import torch
import torch.distributed as dist

import models
import sharding

dist.init_process_group("gloo")
torch.manual_seed(0)
model = sharding.shard_model(models.build("Net"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.arange(16.0).view(4, 4) / 3 + dist.get_rank()
for step in range(3):
    loss = (model(inputs).float() - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
print("mean", sum(b.double().sum().item() for n, b in model.named_buffers() if "mean" in n))
dist.destroy_process_group()
"""


@pytest.mark.train
def test_layers_of_a_model_that_nobody_in_sight_gives(launcher: Launcher, tmp_path: Path) -> None:
    scripts = []
    for version in ("before", "after"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "sharding.py").write_text(GIVEN)
        (tmp_path / version / "models.py").write_text(MODELS)
    for path, data in session.run([tmp_path / "after"]).result.changes.items():
        path.write_bytes(data)
    for version in ("before", "after"):
        scripts.append(tmp_path / version / "train.py")
        scripts[-1].write_text(CALLER)
    old = launcher.script(scripts[0], fsdp1="allow")
    new = launcher.script(scripts[1], fsdp1="forbid")
    assert compare(old, new, tolerance=1e-4) == 8


@pytest.mark.train
@pytest.mark.parametrize("call", CALLS)
def test_evaluations_in_a_file_that_is_not_read(
    launcher: Launcher, tmp_path: Path, call: str
) -> None:
    files = {"evaluation.py": EVALUATION, "train.py": LOOP.replace("CALL", call)}
    before, after = both(tmp_path, files)
    assert "model.reshard()" in after.read_text()
    old, new = launcher.script(before, fsdp1="allow"), launcher.script(after, fsdp1="forbid")
    assert compare(old, new, tolerance=1e-5) == 12


def test_what_does_not_run_the_model_is_no_evaluation(tmp_path: Path) -> None:
    files = {"evaluation.py": EVALUATION, "train.py": LOOP.replace("CALL", "describe(model)")}
    _, after = both(tmp_path, files)
    assert "reshard" not in after.read_text()
