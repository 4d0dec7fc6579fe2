"""Attributes that get the names of a dictionary's entries: ``setattr`` in a loop, ``__dict__``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

MAIN = """\
import torch
from types import SimpleNamespace
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Holder:
    net = None

    def __init__(self, **given):
        self.other = None
        FILL

    @classmethod
    def of(cls, **things):
        for name, thing in things.items():
            setattr(cls, name, thing)


def main(net, other, event):
    MADE
    print(sum(p.std() for p in holder.net.parameters()))
"""
MODEL = "holder = Holder(net=FSDP(net), other=other)"
SET = {
    "a loop": (
        "for name, value in given.items():\n            setattr(self, name, value)",
        MODEL,
    ),
    "own dictionary": ("self.__dict__.update(given)", MODEL),
    "opened": ("self.__dict__.update(**given)", MODEL),
    "vars": ("vars(self).update(given)", MODEL),
    "wrapped in the loop": (
        "for key, part in given.items():\n            setattr(self, key, FSDP(part))",
        "holder = Holder(net=net)",
    ),
    "an item of its dictionary": ("self.__dict__['net'] = FSDP(given['net'])", "holder = Holder()"),
    "an item of vars": ("vars(self)['net'] = given['net']", MODEL),
    "a class": ("pass", "Holder.of(net=FSDP(net))\n    holder = Holder"),
    "a written dictionary": (
        "pass",
        "parts = {'net': FSDP(net), 'other': other}\n    holder = Holder()\n"
        "    for name, part in parts.items():\n        setattr(holder, name, part)",
    ),
}
NOT = {
    "another name": ("self.__dict__.update(given)", "holder = Holder(model=FSDP(net), net=other)"),
    "another object": (
        "pass",
        "holder, event = Holder(), SimpleNamespace()\n    holder.net = other\n"
        "    for name, part in {'net': FSDP(net)}.items():\n        setattr(event, name, part)",
    ),
    "another value": (
        "for name, value in given.items():\n            setattr(self, name, torch.nn.Linear(2, 2))",
        MODEL,
    ),
    "another dictionary": ("event = {}\n        event.update(given)\n        self.net = 1", MODEL),
}
MARKER = "# TODO(fsdp-migrate FSDP408)"


def after(fill: str, made: str) -> str:
    text = MAIN.replace("FILL", fill).replace("MADE", made)
    return migrate({"main.py": text})[1]["main.py"]


@pytest.mark.parametrize(("fill", "made"), SET.values(), ids=SET)
def test_an_attribute_has_what_the_entry_of_its_name_has(fill: str, made: str) -> None:
    assert MARKER in after(fill, made)


@pytest.mark.parametrize(("fill", "made"), NOT.values(), ids=NOT)
def test_what_gets_another_value_is_no_model(fill: str, made: str) -> None:
    assert MARKER not in after(fill, made)


CLIPS = {
    "by a name": "getattr(worker, name).clip_grad_norm_(0.3)",
    "in a loop": "for each in worker.names:\n        getattr(worker, each).clip_grad_norm_(0.3)",
    "through a variable": "part = getattr(worker, name)\n    part.clip_grad_norm_(max_norm=0.3)",
    "or nothing": "getattr(worker, name, None).clip_grad_norm_(0.3)",
}
OTHERS = {
    "a library": "getattr(torch.nn.utils, name).clip_grad_norm_(0.3)",
    "of parameters": "getattr(worker, name).clip_grad_norm_(net.parameters(), 0.3)",
    "another library": "getattr(torch.optim, name).clip_grad_norm_(0.3)",
}
WORKER = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Worker:
    def __init__(self, **parts):
        self.names = list(parts)
        for name, part in parts.items():
            setattr(self, name, FSDP(part))


def main(net, name):
    worker = Worker(actor=net)
    CLIP
"""


@pytest.mark.parametrize("clip", CLIPS.values(), ids=CLIPS)
def test_what_only_models_have_is_asked_of_what_getattr_gives(clip: str) -> None:
    text = migrate({"main.py": WORKER.replace("CLIP", clip)})[1]["main.py"]
    assert ".clip_grad_norm_(0.3)" not in text
    assert "torch.nn.utils.clip_grad_norm_(" in text


@pytest.mark.parametrize("clip", OTHERS.values(), ids=OTHERS)
def test_of_other_things_it_is_not(clip: str) -> None:
    text = migrate({"main.py": WORKER.replace("CLIP", clip)})[1]["main.py"]
    assert clip in text
