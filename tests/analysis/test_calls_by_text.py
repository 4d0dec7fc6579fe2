"""Methods that are run by their names: ``getattr(callback, name)(self)``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

MAIN = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Callback:
    def on_start(self, trainer):
        pass

    def on_end(self, trainer):
        pass


class Sizes(Callback):
    def on_end(self, trainer):
        total = torch.tensor(float(sum(p.numel() for p in trainer.model.parameters())))
        dist.all_reduce(total)
        print(total)

    def __call__(self, trainer):
        pass


class Trainer:
    def __init__(self, model, callbacks):
        self.model = model
        self.callbacks = callbacks

    def run(self, name, given=None):
        for callback in self.callbacks:
            CALL


def main(net, event):
    model = MODEL
    trainer = Trainer(model, [Sizes()])
    trainer.run(NAME)
"""
CALLS = {
    "there": "getattr(callback, name)(self)",
    "with a default": "getattr(callback, name, print)(self)",
    "through a variable": "hook = getattr(callback, name)\n            hook(self)",
    "if there is one": (
        "hook = getattr(callback, name, None)\n            if hook is not None:\n"
        "                hook(trainer=self)"
    ),
    "in a condition": (
        "if (hook := getattr(callback, name, None)) is not None:\n                hook(self)"
    ),
    "a written name": 'getattr(callback, "on_end")(self)',
    "with a prefix": 'getattr(callback, f"on_{name}")(self)',
}
OTHERS = {
    "another name": 'getattr(callback, "on_start")(self)',
    "nothing of it": "print(getattr(callback, name))",
    "another object": "getattr(callback, name)(given)",
    "another thing's": "getattr(self.callbacks, name)(self)",
}


def after(call: str, name: str = '"on_end"', model: str = "FSDP(net, use_orig_params=True)") -> str:
    text = MAIN.replace("CALL", call).replace("NAME", name).replace("MODEL", model)
    return migrate({"main.py": text})[1]["main.py"]


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name", ['"on_end"', "event"])
def test_what_runs_by_its_name_meets_the_model(call: str, name: str) -> None:
    assert "own_part(p).numel() for p in trainer.model.parameters()" in after(call, name)


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_what_does_not_run_meets_none(call: str) -> None:
    assert "own_part" not in after(call)


def test_a_name_that_is_known_runs_no_other() -> None:
    assert "own_part" not in after(CALLS["there"], '"on_start"')


def test_a_model_that_is_not_sharded_stays() -> None:
    text = after(CALLS["there"], model="nn.parallel.DistributedDataParallel(net)")
    assert "own_part" not in text
