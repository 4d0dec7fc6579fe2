"""Sharded states in loops: what may see one after the next step is given a copy, however the loop
comes there; what is of the same round is not."""

from __future__ import annotations

import textwrap

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import contextlib
import random

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

FIRST = 2


def is_due(n):
    return n % 5 == 0


def is_main():
    return dist.get_rank() == 0


def swapped(model, state):
    model.load_state_dict(state)


class Clock:
    def __init__(self):
        self.n = 0
        self.name = "run"

    def tick(self):
        self.n += 1

    def is_due(self):
        self.n += 1
        return self.n == 3


def run(net, loader, clock, kind, limit):
    model = FSDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)

    def one(x):
        model(x).sum().backward()
        optimizer.step()

    def two(x):
        one(x)

    saved = None
    for n, x in enumerate(loader):
{body}
{after}
"""
STEP = "one(x)"
SAVE, LOAD = "saved = model.state_dict()", "model.load_state_dict(saved)"


def emitted(body: str, after: str = "") -> str:
    given = textwrap.dedent(body).replace("STEP", STEP).replace("SAVE", SAVE).replace("LOAD", LOAD)
    return rewritten(
        PROGRAM.format(body=textwrap.indent(given, " " * 8), after=textwrap.indent(after, " " * 4))
    )


EARLIER = {
    "another condition": "STEP\nif n == 2:\n    SAVE\nif n == 4:\n    LOAD",
    "continue": "STEP\nif n != 2:\n    if n == 4:\n        LOAD\n    continue\nSAVE",
    "continue behind the save": "STEP\nif n == 2:\n    SAVE\n    continue\nif n > 2:\n    LOAD",
    "another branch": "STEP\nif n == 2:\n    SAVE\nelif n == 4:\n    LOAD",
    "else": "STEP\nif n < 3:\n    SAVE\nelse:\n    LOAD",
    "the same condition of a step that goes on": (
        "STEP\nif n == 2:\n    SAVE\nn += 2\nif n == 2:\n    LOAD"
    ),
    "match": "STEP\nmatch n:\n    case 2:\n        SAVE\n    case 4:\n        LOAD",
    "match of two": (
        "STEP\nmatch n:\n    case 2:\n        SAVE\nmatch n:\n    case 4:\n        LOAD"
    ),
    "try": "try:\n    STEP\n    SAVE\nexcept FloatingPointError:\n    LOAD",
    "finally": "try:\n    STEP\n    if n > 3:\n        SAVE\nfinally:\n    LOAD",
    "suppress": ("STEP\nwith contextlib.suppress(ValueError):\n    limit(n)\n    SAVE\nLOAD"),
    "while": "STEP\nwhile n > 2:\n    SAVE\n    break\nelse:\n    LOAD",
    "a conditional expression": (
        "STEP\nsaved = model.state_dict() if n == 2 else saved\nif saved is not None:\n    LOAD"
    ),
    "a conditional use": "STEP\nif n == 2:\n    SAVE\nprint(saved if n > 2 else None)",
    "and": "STEP\nif n == 2:\n    SAVE\nn == 4 and model.load_state_dict(saved)",
    "a walrus": ("STEP\nif n == 2:\n    SAVE\nif (n := n + 2) and n == 2:\n    LOAD"),
    "a function that trains": "two(x)\nif n == 2:\n    SAVE\nif n == 4:\n    LOAD",
    "an inner loop": (
        "for y in x:\n    one(y)\n    if n == 2:\n        SAVE\n    if n == 4:\n        LOAD"
    ),
    "a step between": "SAVE\nSTEP\nLOAD",
    "a step in one branch between": "SAVE\nif n > 2:\n    STEP\nLOAD",
    "the use comes first": "STEP\nif saved is not None:\n    LOAD\nSAVE",
    "a condition that answers anew": (
        "STEP\nif clock.is_due():\n    SAVE\nif clock.is_due():\n    LOAD"
    ),
    "a condition by chance": (
        "STEP\nif random.random() > 0.5:\n    SAVE\nif random.random() > 0.5:\n    LOAD"
    ),
    "a condition that a method changes": (
        "STEP\nif clock.n == 3:\n    SAVE\nclock.tick()\nif clock.n == 3:\n    LOAD"
    ),
    "a part of the condition": (
        "STEP\nif is_main() and n == 2:\n    SAVE\nif is_main():\n    LOAD"
    ),
    "two names": "last = saved\nSAVE\nSTEP\nif last is not None:\n    model.load_state_dict(last)",
    "what was before": "STEP\nlast, saved = saved, model.state_dict()\nprint(last)",
    "one of many": (
        "if n == 0:\n    states = {}\nSTEP\nstates[n] = model.state_dict()\n"
        "model.load_state_dict(states[0])"
    ),
    "a walrus that takes it": (
        "STEP\nif n == 2 and (saved := model.state_dict()):\n    print(n)\nif n == 4:\n    LOAD"
    ),
    "a load of others between": "SAVE\nmodel.load_state_dict(kind)\nlimit(n)\nLOAD",
    "a function that loads others": "SAVE\nswapped(model, kind)\nlimit(n)\nLOAD",
    "a function that is called later": "STEP\nSAVE\nlimit(lambda: torch.save(saved, 'a'))",
}
SAME = {
    "at once": "STEP\nSAVE\nLOAD",
    "loaded itself": "STEP\nSAVE\nLOAD\nprint(saved)",
    "a load into something else": "STEP\nSAVE\noptimizer.load_state_dict(kind)\nprint(saved)",
    "a walrus": "STEP\nif (saved := model.state_dict()):\n    print(saved)",
    "the same condition": "STEP\nif n == 2:\n    SAVE\nif n == 2:\n    LOAD",
    "the same condition, the other way round": (
        "STEP\nif n == 2:\n    SAVE\nif n != 2:\n    continue\nLOAD"
    ),
    "a condition of the rank": (
        "STEP\nif n % 5 == 0:\n    SAVE\nif is_main() and n % 5 == 0:\n    torch.save(saved, 'a')"
    ),
    "a condition of the project's": "STEP\nif is_due(n):\n    SAVE\nif is_due(n):\n    LOAD",
    "a condition that nothing changes": (
        "STEP\nif clock.name == 'a':\n    SAVE\nclock.tick()\nif clock.name == 'a':\n    LOAD"
    ),
    "both branches": "STEP\nif n == 2:\n    SAVE\nelse:\n    saved = None\nprint(saved)",
    "none of earlier rounds": "saved = None\nSTEP\nif n == 2:\n    SAVE\nprint(saved)",
    "a conditional expression": (
        "STEP\nsaved = model.state_dict() if n == 2 else None\nif saved is not None:\n    LOAD"
    ),
    "a conditional use": "STEP\nif n == 2:\n    SAVE\nprint(saved if n == 2 else None)",
    "continue": "STEP\nif n != 2:\n    continue\nSAVE\nLOAD",
    "match": "STEP\nmatch kind:\n    case 'a':\n        SAVE\nif kind == 'a':\n    LOAD",
    "try": "STEP\ntry:\n    SAVE\n    LOAD\nexcept OSError:\n    pass",
    "deleted": "STEP\nif n == 2:\n    SAVE\n    LOAD\nif n > 2:\n    saved = None\nprint(n)",
    "a question for none": "STEP\nif saved is None:\n    SAVE\n    LOAD",
    "under a key that every round sets": (
        "states = {'n': n}\nSTEP\nstates['model'] = model.state_dict()\ntorch.save(states, 'a')"
    ),
}


@pytest.mark.parametrize("way", EARLIER)
def test_what_sees_an_earlier_round_gets_a_copy(way: str) -> None:
    assert "deepcopy(get_model_state_dict(" in emitted(EARLIER[way])


@pytest.mark.parametrize("way", SAME)
def test_what_is_of_the_same_round_is_no_copy(way: str) -> None:
    assert "deepcopy(" not in emitted(SAME[way])


@pytest.mark.parametrize(
    ("body", "copied"),
    [
        ("STEP\nif n == 2:\n    SAVE", True),
        ("STEP\nif n == 2:\n    SAVE\n    break", False),
        ("STEP\nSAVE", False),
        ("SAVE\nSTEP", True),
    ],
)
def test_what_is_used_behind_the_loop(body: str, copied: bool) -> None:
    assert ("deepcopy(" in emitted(body, f"\n{LOAD}")) is copied


MANAGER = """
import contextlib

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


@contextlib.contextmanager
def averaged(net, average):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    saved = model.state_dict()
    {given}
    {used}


def states(net):
    model = FSDP(net)
    FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    while True:
        {given_out}
"""


@pytest.mark.parametrize(
    ("given", "used", "given_out", "copies"),
    [
        ("yield model", "model.load_state_dict(saved)", "pass", 1),
        ("yield", "print(saved)", "yield model.state_dict()", 2),
        ("print(saved)", "yield model", "print(model.state_dict())", 0),
    ],
)
def test_what_others_do_at_a_yield(given: str, used: str, given_out: str, copies: int) -> None:
    text = rewritten(MANAGER.format(given=given, used=used, given_out=given_out))
    assert text.count("deepcopy(get_model_state_dict(") == copies


DEEP = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Run:
    def __init__(self, net):
        self.model = FSDP(net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        FSDP.set_state_dict_type(self.model, StateDictType.SHARDED_STATE_DICT)

    def call_0(self, n):
        BOTTOM
        if n > 0:
            self.call_8(n - 1)

    CALLS

    def first(self):
        saved = self.model.state_dict()
        self.call_FIRST(0)
        self.model.load_state_dict(saved)

    def second(self):
        saved = self.model.state_dict()
        self.call_SECOND(0)
        self.model.load_state_dict(saved)
"""


@pytest.mark.parametrize("asked", [(8, 2), (2, 8), (5, 4), (0, 8), (8, 8)])
@pytest.mark.parametrize("bottom", ["self.optimizer.step()", "print(n)"])
def test_a_chain_of_calls_may_be_long(asked: tuple[int, int], bottom: str) -> None:
    """Whichever of its functions is asked first, and though they call one another in a circle."""
    calls = "".join(
        f"def call_{n}(self, n):\n        self.call_{n - 1}(n)\n\n    " for n in range(1, 9)
    )
    given = DEEP.replace("CALLS", calls).replace("BOTTOM", bottom)
    given = given.replace("FIRST", str(asked[0])).replace("SECOND", str(asked[1]))
    copies = rewritten(given).count("deepcopy(get_model_state_dict(")
    assert copies == (2 if "step" in bottom else 0)
