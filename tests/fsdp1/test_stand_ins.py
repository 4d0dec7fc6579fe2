"""What tests give in the place of a model or an optimizer tells nothing of the program's own."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

WRAP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(net):
    return FSDP(net)
"""
CLIPPER = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Clipper:
    def __init__(self, model: {type}, limit{default}):
        self.model = model
        self.limit = limit

    def clip(self):
        return self.model.clip_grad_norm_(self.limit)
"""
REGISTRY = """\
from clipper import Clipper

COMPONENTS = {"clipper": Clipper}
"""
MOCK = """\
from torch import nn

from clipper import Clipper


class Mock(nn.Module):
    def __init__(self):
        super().__init__()
        self.asked = []


def test_it():
    Clipper(Mock(), 1.0).clip()
"""


def clipper(type: str, caller: str, default: str = "") -> str:
    files = {
        "wrap.py": WRAP,
        "clipper.py": CLIPPER.format(type=type, default=default),
        "registry.py": REGISTRY,
        caller: MOCK,
    }
    return migrate(files)[1]["clipper.py"]


@pytest.mark.parametrize("caller", ["test_clipper.py", "tests/clipping.py"])
@pytest.mark.parametrize("type", ["FSDP", "FSDP | None", '"FSDP"'])
def test_a_typed_model_that_tests_stand_in_for_is_one(type: str, caller: str) -> None:
    new = "torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)"
    assert new in clipper(type, caller)


@pytest.mark.parametrize(
    ("type", "caller"),
    [("FSDP", "trainer.py"), ("nn.Module", "test_clipper.py"), ("Mock", "test_clipper.py")],
)
def test_what_the_program_gives_and_other_types_count(type: str, caller: str) -> None:
    assert "return self.model.clip_grad_norm_(self.limit)" in clipper(type, caller)


LOAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(net):
    return FSDP(net)


def load(model: FSDP, optimizer, path, rank):
    state = torch.load(path) if rank == 0 else None
    optimizer.load_state_dict(FSDP.scatter_full_optim_state_dict(state, model))


def schedule():
    return torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD([torch.zeros(1)]), 0.9)
"""
CALLER = """\
import torch

from loading import load, wrap


def run(net):
    model = wrap(net)
    load(model, torch.optim.AdamW(model.parameters()), "optimizer.pt", 0)
"""


@pytest.mark.parametrize(("caller", "given"), [("test_loading.py", True), ("resume.py", False)])
def test_an_optimizer_that_tests_give_may_be_scheduled(caller: str, given: bool) -> None:
    after = migrate({"loading.py": LOAD, caller: CALLER})[1]["loading.py"]
    assert ('setdefault("initial_lr"' in after) is given
    assert "set_optimizer_state_dict" in after
