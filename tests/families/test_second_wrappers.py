"""A model that is wrapped again is wrapped once, wherever the first wrapper is."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision


def sharded(net):
    return FSDP(net, use_orig_params=True)


"""
HELD = """\
class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)


class Further(Trainer):
    def __init__(self, net):
        super().__init__(net)
        self.model = FSDP(self.model, use_orig_params=True)
"""
ONCE = {
    "a call in a call": "def build(net):\n    return FSDP(sharded(net))\n",
    "a name": (
        "def build(net):\n    model = sharded(net)\n    model = FSDP(model)\n    return model\n"
    ),
    "three": "def build(net):\n    return FSDP(FSDP(sharded(net)))\n",
    "a list": "def build(nets):\n    return [FSDP(sharded(net)) for net in nets]\n",
    "an element": "def build(net):\n    models = [sharded(net)]\n    return FSDP(models[0])\n",
    "an attribute of the base": HELD,
    "a value that nothing takes": "def build(net):\n    model = sharded(net)\n    FSDP(model)\n",
}
DOUBTED = {
    "a loop": "def build(net):\n    for _ in range(2):\n        net = FSDP(net)\n    return net\n",
    "one of two": (
        "def build(net, big):\n    model = sharded(net) if big else net\n    return FSDP(model)\n"
    ),
    "one function": "def build(net):\n    return sharded(sharded(net))\n",
}
REFUSED = {
    "a policy": "def build(net, p):\n    return FSDP(sharded(net), auto_wrap_policy=p)\n",
    "arguments from elsewhere": "def build(net, k):\n    return FSDP(sharded(net), **k)\n",
    "a part": "def build(net):\n    model = sharded(net)\n    model.a = FSDP(model.a)\n",
}
ELSE = {
    "two ways to wrap": (
        "class T:\n    def __init__(self, net):\n        self.model = net\n\n"
        "    def one(self):\n        self.model = FSDP(self.model)\n\n"
        "    def other(self):\n        self.model = FSDP(self.model, forward_prefetch=True)\n"
    ),
    "where a test tells": (
        "def build(net, big):\n    model = sharded(net) if big else net\n"
        "    if not isinstance(model, FSDP):\n        model = FSDP(model)\n    return model\n"
    ),
}


@pytest.mark.parametrize("program", ONCE.values(), ids=ONCE)
def test_the_second_call_goes(program: str) -> None:
    result, after = migrate({"example.py": HEAD + program})
    assert worst(result) is Outcome.REWRITTEN
    assert "FSDP(" not in after["example.py"]
    shards = after["example.py"].count("fully_shard(")
    assert shards == (2 if program is HELD else 1)


@pytest.mark.parametrize("program", DOUBTED.values(), ids=DOUBTED)
def test_what_may_be_wrapped_is_marked(program: str) -> None:
    result, after = migrate({"example.py": HEAD + program})
    assert worst(result) is Outcome.REVIEW
    assert after["example.py"].count("This may be an FSDP model already") == 1


@pytest.mark.parametrize("program", REFUSED.values(), ids=REFUSED)
def test_what_fsdp1_refuses_or_more_than_wraps_stays(program: str) -> None:
    result, after = migrate({"example.py": HEAD + program})
    assert worst(result) is Outcome.LEFT
    assert "fully_shard(" not in after["example.py"]


@pytest.mark.parametrize("program", ELSE.values(), ids=ELSE)
def test_what_is_wrapped_once_is_not_taken_for_twice(program: str) -> None:
    result, after = migrate({"example.py": HEAD + program})
    assert worst(result) is Outcome.REWRITTEN
    assert after["example.py"].count("fully_shard(") == (3 if "class" in program else 2)


@pytest.mark.parametrize(
    "parts",
    [
        "for i in range(len(net.layers)):\n        net.layers[i] = sharded(net.layers[i])",
        "for i, layer in enumerate(net.layers):\n        net.layers[i] = sharded(layer)",
        "for name, part in net.named_children():\n        setattr(net, name, sharded(part))",
        "net.encoder = sharded(net.encoder)",
        "for name in ('one', 'two'):\n        setattr(net, name, sharded(getattr(net, name)))",
        "for name in NAMES:\n        setattr(net, name, FSDP(getattr(net, name)))",
        "for name in NAMES:\n        net.set_submodule(name, FSDP(net.get_submodule(name)))",
    ],
)
def test_parts_in_their_places_and_the_whole_are_wrapped_once_each(parts: str) -> None:
    program = f"def build():\n    net = Net()\n    {parts}\n    return sharded(net)\n"
    net = "class Net(torch.nn.Module):\n    layers: torch.nn.ModuleList\n\n\n"
    result, after = migrate({"example.py": HEAD + net + program})
    assert not result.problems
    assert "may be an FSDP model already" not in after["example.py"]


CALLERS = """

def shard_low(net):
    precision = MixedPrecision(param_dtype=torch.bfloat16)
    model = FSDP(net, mixed_precision=precision)
    return model


def train(net):
    model = shard_low(net)
    model(torch.ones(2, 4)).sum().backward()


def evaluate(net):
    model = FSDP(shard_low(net))
    print(model(torch.ones(2, 4)))
"""


@pytest.mark.parametrize("named", [True, False])
def test_one_caller_that_wraps_again_does_not_decide_for_others(named: bool) -> None:
    """The first wrapper's root casts its inputs, for the caller that has nothing around it."""
    program = CALLERS
    if not named:
        program = program.replace(
            "model = FSDP(net, mixed_precision=precision)\n    return model",
            ("return FSDP(net, mixed_precision=precision)"),
        )
    result, after = migrate({"example.py": HEAD + program})
    assert worst(result) is Outcome.REVIEW
    assert "cast_forward_inputs=False" not in after["example.py"]
    assert "here FSDP1 did not cast them" in " ".join(after["example.py"].split()).replace("# ", "")
