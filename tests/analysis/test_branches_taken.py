"""Literal arguments of a call tell which branches of the function it takes."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
BUILD = {
    "a branch": """\
def build(net, world_size=8):
    if world_size > 1:
        net = FSDP(net)
    return net
""",
    "an early return": """\
def build(net, world_size=8):
    if world_size == 1:
        return net
    return FSDP(net)
""",
    "an expression": """\
def build(net, world_size=8):
    return FSDP(net) if world_size != 1 else net
""",
    "two conditions": """\
def build(net, world_size=8, cpu=False):
    if not cpu and world_size > 1:
        net = FSDP(net)
    return net
""",
    "a list": """\
def build(net, world_size=8):
    if world_size not in (0, 1):
        net = FSDP(net)
    return net
""",
    "a tuple with a name": """\
ALONE = (0, 1)


def build(net, world_size=8):
    return net if world_size in ALONE else FSDP(net)
""",
    "a predicate": """\
def is_shared(number):
    \"\"\"Whether there is more than one rank.\"\"\"
    return number > 1


def build(net, world_size=8):
    return FSDP(net) if is_shared(world_size) else net
""",
    "a closure": """\
def build(net, world_size=8):
    def wrap(module):
        if world_size > 1:
            return FSDP(module)
        return module

    return wrap(net)
""",
    "a variable": """\
def build(net, world_size=8):
    is_shared = world_size > 1
    if is_shared:
        net = FSDP(net)
    return net
""",
    "a parameter that is given anew": """\
def build(net, world_size=8):
    if world_size == 0:
        world_size = 1
    if world_size > 1:
        net = FSDP(net)
    return net
""",
    "another function": """\
def shard(net):
    return FSDP(net)


def build(net, world_size=8):
    if world_size >= 2:
        return shard(net)
    return net
""",
    "an assertion": """\
def sharded(net, world_size):
    assert world_size > 1
    return FSDP(net)


def build(net, world_size=8):
    return net if world_size <= 1 else sharded(net, world_size)
""",
}
USES = """

def train(net):
    model = build(net)
    return model.state_dict()


def show(net):
    model = build(net, world_size={given})
    return model.state_dict()
"""
GATHERED = "    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"


@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_a_call_that_makes_no_model_is_left(build: str) -> None:
    _, after = migrate({"train.py": HEAD + build + USES.format(given="1")})
    lines = after["train.py"].splitlines()
    assert lines[-1] == "    return model.state_dict()"
    assert any(line.startswith("    return get_model_state_dict(") for line in lines)


@pytest.mark.parametrize("given", ["4", "size", "len(net)", "int('1')"])
@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_a_call_that_may_make_one_is_not(build: str, given: str) -> None:
    _, after = migrate({"train.py": HEAD + build + USES.format(given=given)})
    assert "model.state_dict()" not in after["train.py"].replace("get_model_state_dict", "")


SET_AGAIN = """\
def build(net, world_size=8):
    world_size = max(world_size, len(net))
    if world_size > 1:
        net = FSDP(net)
    return net
"""


def test_a_parameter_that_is_set_again_tells_nothing() -> None:
    _, after = migrate({"train.py": HEAD + SET_AGAIN + USES.format(given="1")})
    assert "model.state_dict()" not in after["train.py"].replace("get_model_state_dict", "")


OPEN = """\
ALONE = NUMBERS


def build(net, world_size=8):
    return net if world_size in ALONE else FSDP(net)
"""


@pytest.mark.parametrize("numbers", ["[0, 1]", "(0, 1)\nALONE = (0,)", "read()", "(0, *read())"])
def test_a_collection_that_may_hold_others_tells_nothing(numbers: str) -> None:
    build = OPEN.replace("NUMBERS", numbers)
    _, after = migrate({"train.py": HEAD + build + USES.format(given="1")})
    assert "model.state_dict()" not in after["train.py"].replace("get_model_state_dict", "")
