"""A file that builds an optimizer of what it is given is read, though it speaks of no model."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.discovery.test_model_files import codes, read

MAIN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from building import build_optimizer

model = FSDP(nn.Linear(4, 4), use_orig_params=True)
optimizer = build_optimizer(model.parameters(), 0.1)
"""
FREE = "def free():\n    return [nn.Parameter(torch.zeros(1))]\n\n\n"
PLAIN = MAIN.replace("build_optimizer(model.parameters(), 0.1)", "build_optimizer(free(), 0.1)")
PLAIN = PLAIN.replace("model =", FREE + "model =")

FAILING = {
    "of bitsandbytes": "def build_optimizer(params, lr):\n    import bitsandbytes as bnb\n\n"
    "    return bnb.optim.Adam8bit(list(params), lr=lr)\n",
    "of transformers": "from transformers.optimization import Adafactor\n\n\n"
    "def build_optimizer(params, lr):\n    params = list(params)\n"
    "    return Adafactor(params, lr=lr)\n",
    "of torch": "import torch\n\n\ndef build_optimizer(params, lr):\n"
    "    return torch.optim.LBFGS(params, lr=lr)\n",
    "by a name": "import torch\nimport bitsandbytes as bnb\n\n\ndef build_optimizer(params, lr):\n"
    '    optimizers = {"adamw": torch.optim.AdamW, "8bit": bnb.optim.AdamW8bit}\n'
    '    if lr > 1:\n        return optimizers["adamw"](params, lr=lr)\n'
    "    return bnb.optim.AdamW8bit(params, lr=lr)\n",
}


@pytest.mark.parametrize("building", FAILING.values(), ids=FAILING)
def test_one_that_fails_on_sharded_parameters_is_marked_where_it_is(
    tmp_path: Path, building: str
) -> None:
    run = read(tmp_path, {"train.py": MAIN, "building.py": building})
    assert codes(run, "building.py") == {"FSDP410"}
    assert tmp_path / "building.py" in run.changed
    assert {d.outcome for d in run.result.decisions if d.code == "FSDP410"} == {Outcome.LEFT}


def test_one_of_another_package_is_for_review(tmp_path: Path) -> None:
    building = "from shampoo import Shampoo\n\n\ndef build_optimizer(params, lr):\n"
    building += "    return Shampoo(params, lr=lr)\n"
    run = read(tmp_path, {"train.py": MAIN, "building.py": building})
    assert codes(run, "building.py") == {"FSDP410"}
    assert {d.outcome for d in run.result.decisions if d.code == "FSDP410"} == {Outcome.REVIEW}


KEPT = {
    "by elements": "import torch\n\n\ndef build_optimizer(params, lr):\n"
    "    return torch.optim.AdamW(params, lr=lr)\n",
    "of parameters of its own": "import torch\nimport bitsandbytes as bnb\n\n\n"
    "def build_optimizer(params, lr):\n    return torch.optim.SGD(params, lr=lr)\n\n\n"
    "def of_scales(scales):\n    return bnb.optim.Adam8bit(scales)\n",
    "of torchao": "from torchao.optim import AdamW8bit\n\n\ndef build_optimizer(params, lr):\n"
    "    return AdamW8bit(params, lr=lr)\n",
}


@pytest.mark.parametrize("building", KEPT.values(), ids=KEPT)
def test_others_are_kept(tmp_path: Path, building: str) -> None:
    run = read(tmp_path, {"train.py": MAIN, "building.py": building})
    assert not codes(run, "building.py")
    assert [path.name for path in run.changed] == ["train.py"]


@pytest.mark.parametrize("building", FAILING.values(), ids=FAILING)
def test_plain_parameters_are_none_of_a_sharded_model(tmp_path: Path, building: str) -> None:
    run = read(tmp_path, {"train.py": PLAIN, "building.py": building})
    assert not codes(run, "building.py")


def test_a_file_that_nothing_joins_is_not_read(tmp_path: Path) -> None:
    apart = FAILING["of bitsandbytes"]
    files = {"train.py": MAIN, "building.py": KEPT["by elements"], "apart/other.py": apart}
    run = read(tmp_path, files)
    assert "other.py" in {Path(path).name for path in run.found.library}
