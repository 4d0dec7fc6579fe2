"""Models that are handed on with a star, in a part of a tuple or in a dictionary."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build():
    model = FSDP(nn.Linear(3, 3))
    return model, torch.optim.SGD(model.parameters(), 0.1), 5


def step(n, model, *rest):
    model.clip_grad_norm_(1.0)


"""
CLIPS = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
HANDED_ON = {
    "a tuple": "state = build()\nstep(3, *state)\n",
    "a part of it": "state = build()\nstep(3, *state[:2], 0)\n",
    "a part from the end": "state = (0, *build())\nstep(0, *state[-3:-1])\n",
    "a tuple in a tuple": "given = (3, *build())\nstep(*given)\n",
    "a sum": "state = build()\nstep(*(3,), *(state[:1] + (4,)))\n",
    "a list": "given = [3, build()[0]]\nstep(*given)\n",
    "a tuple made of a list": "given = [3, *build()]\nstep(*tuple(given))\n",
    "the last of a tuple": "other = (1, build()[0])\nstep(1, other[-1])\n",
    "behind a starred name": "*rest, model = 1, 2, build()[0]\nstep(1, model)\n",
    "a dictionary": "given = {'n': 1, 'model': build()[0]}\nstep(**given)\n",
    "a call of dict": "step(1, **dict(model=build()[0]))\n",
    "what a function collects": ("def run(*given):\n    step(0, *given)\n\n\nrun(*build())\n"),
    "the first that a function collects": (
        "def run(n, *given):\n    step(n, given[0])\n\n\nrun(1, *build())\n"
    ),
    "what it collects, unpacked": (
        "def run(*given):\n    n, model = given\n    step(n, model)\n\n\nrun(2, build()[0])\n"
    ),
    "parts of a generator": (
        "first, model = (FSDP(m) for m in (nn.Linear(2, 2), nn.Linear(3, 3)))\nstep(1, model)\n"
    ),
    "parts of a tuple made of one": (
        "def shard(m):\n    return FSDP(m)\n\n\n"
        "class Shards:\n    def __init__(self, fn):\n        self.fn = fn\n\n"
        "    def all(self, modules):\n        return tuple(self.fn(m) for m in modules)\n\n\n"
        "first, model = Shards(shard).all([nn.Linear(2, 2), nn.Linear(3, 3)])\nstep(1, model)\n"
    ),
    "to processes": (
        "import torch.multiprocessing as mp\n\ngiven = build()[:1]\nmp.spawn(step, args=given)\n"
    ),
}


@pytest.mark.parametrize("use", HANDED_ON.values(), ids=HANDED_ON)
def test_a_model_handed_on_is_followed(use: str) -> None:
    assert CLIPS in rewritten(HEAD + use)


OTHERS = {
    "what stands beside it": "state = build()\nstep(3, *state[1:])\n",
    "another place of the tuple": "first = build()\nstep(*first)\n",
    "the rest of a tuple": "_, other, *_ = build()\nstep(1, other)\n",
    "another entry of a dictionary": "step(**{'n': build()[0], 'model': torch.zeros(1)})\n",
    "another that a function collects": (
        "def run(*given):\n    step(0, given[1])\n\n\nrun(*build())\n"
    ),
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_what_is_handed_on_beside_a_model_stays(use: str) -> None:
    after = rewritten(HEAD + use)
    assert "    model.clip_grad_norm_(1.0)\n" in after
    assert after.endswith(use)


PARTS = {
    "parts of what holds others too": (
        "other, model = (m for m in (build()[0], torch.zeros(1)))\nstep(1, other)\n"
    ),
    "the keys of a dictionary": (
        "other, key = {name: build()[0] for name in 'ab'}\nstep(1, other)\n"
    ),
}


@pytest.mark.parametrize("use", PARTS.values(), ids=PARTS)
def test_what_may_be_a_part_of_what_holds_a_model_is_marked(use: str) -> None:
    assert "Nothing tells whether this is an FSDP model" in rewritten(HEAD + use)
