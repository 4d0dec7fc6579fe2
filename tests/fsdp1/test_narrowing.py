"""What tests of a model tell: which uses of a name are FSDP1's, and which are not."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

WRAPPERS = (FSDP, DDP)


def build(net, sharded):
    return FSDP(net) if sharded else DDP(net)


def train(net, sharded):
    use(build(net, sharded))


"""

# Bodies of use(model): ``a`` stands where FSDP1 models come, ``b`` where none do.
BODIES = {
    "else": """\
    if isinstance(model, FSDP):
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "not": """\
    if not isinstance(model, FSDP):
        b = model.state_dict()
    else:
        a = model.state_dict()
""",
    "early return": """\
    if isinstance(model, FSDP):
        a = model.state_dict()
        return
    b = model.state_dict()
""",
    "early raise": """\
    if not isinstance(model, FSDP):
        raise TypeError
    a = model.state_dict()
""",
    "continue": """\
    for _ in range(3):
        if isinstance(model, FSDP):
            continue
        b = model.state_dict()
    a = model.state_dict()
""",
    "a loop that makes another": """\
    for _ in range(3):
        if isinstance(model, FSDP):
            print(model)
        a = model.state_dict()
""",
    "elif": """\
    if isinstance(model, FSDP):
        a = model.state_dict()
    elif isinstance(model, (DDP, torch.nn.DataParallel)):
        b = model.module.state_dict()
""",
    "DDP's own": """\
    if isinstance(model, DDP):
        b = model.module.state_dict()
    else:
        a = model.state_dict()
""",
    "both": """\
    if isinstance(model, (FSDP, DDP)):
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "both by a name": """\
    if isinstance(model, WRAPPERS):
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "a union": """\
    if not isinstance(model, FSDP | DDP):
        b = model.state_dict()
    a = model.state_dict()
""",
    "a conditional expression": """\
    a = model.state_dict() if isinstance(model, FSDP) else None
    b = None if isinstance(model, FSDP) else model.state_dict()
""",
    "operands": """\
    a = isinstance(model, FSDP) and model.state_dict()
    b = isinstance(model, FSDP) or model.state_dict()
""",
    "a part of a condition": """\
    if torch and isinstance(model, FSDP):
        a = model.state_dict()
    else:
        a = model.state_dict()
    if not torch or isinstance(model, FSDP):
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "a name for the test": """\
    sharded = isinstance(model, FSDP)
    if sharded:
        a = model.state_dict()
    else:
        b = model.state_dict()
""",
    "a name for the test of an earlier model": """\
    sharded = isinstance(model, FSDP)
    model = build(model, True)
    if not sharded:
        a = model.state_dict()
""",
    "assert": """\
    assert not isinstance(model, FSDP)
    b = model.state_dict()
""",
    "assigned in between": """\
    if not isinstance(model, FSDP):
        model = FSDP(model)
        a = model.state_dict()
    a = model.state_dict()
""",
    "a comprehension": """\
    b = [model.state_dict() for _ in range(2) if not isinstance(model, FSDP)]
    a = model.state_dict()
""",
    "handed on": """\
    if isinstance(model, FSDP):
        a = model.state_dict()
    else:
        plain(model)


def plain(model):
    b = model.state_dict()
""",
    "returned": """\
    a = unwrap(model).state_dict()


def unwrap(model):
    if isinstance(model, FSDP):
        return model.module
    return model
""",
    "compiled": """\
    if sharded:
        model = torch.compile(model)
    if isinstance(model, FSDP):
        a = model.state_dict()
    else:
        a = model.state_dict()
""",
    "an attribute": """\
    Trainer(model).run()


class Trainer:
    def __init__(self, model):
        self.model = model

    def run(self):
        if isinstance(self.model, FSDP):
            self.log()
            a = self.model.state_dict()
        else:
            self.log()
            b = self.model.state_dict()
""",
    "an attribute that is assigned elsewhere": """\
    Trainer(model).run()


class Trainer:
    def __init__(self, model):
        self.model = model

    def wrap(self):
        self.model = FSDP(self.model)

    def run(self):
        if not isinstance(self.model, FSDP):
            b = self.model.state_dict()
            self.wrap()
            a = self.model.state_dict()
""",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_uses_behind_tests(body: str) -> None:
    source = f"{HEAD}def use(model):\n{body}"
    result, _ = migrate({"train.py": source})
    assert not result.problems
    found = {
        d.site.position[0]
        for d in result.decisions
        if d.site.construct.attribute in {"state_dict", "module"}
    }
    lines = source.splitlines()
    uses = [n for n, line in enumerate(lines, 1) if "state_dict()" in line]
    assert found & set(uses) == {n for n in uses if lines[n - 1].lstrip().startswith("a ")}


def test_a_test_is_all_that_is_known() -> None:
    """No call of the function is in the given paths."""
    source = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    return FSDP(net)


def save(model):
    if isinstance(model, FSDP):
        return model.state_dict()
    return model.state_dict()
"""
    result, after = migrate({"train.py": source})
    assert not result.problems
    assert after["train.py"].count("get_model_state_dict(model, ") == 1
    assert after["train.py"].endswith("\n    return model.state_dict()\n")
