"""What tests of a model tell: which uses of a name are FSDP1's, and which are not."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, unmarked

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
    "cases": """\
    match model:
        case DDP():
            b = model.module.state_dict()
        case FSDP():
            a = model.state_dict()
        case _:
            b = model.state_dict()
""",
    "a case of several classes": """\
    match model:
        case FSDP() | DDP():
            a = model.state_dict()
        case torch.nn.Module():
            b = model.state_dict()
""",
    "a case that names what it matches": """\
    match model:
        case DDP() | torch.nn.DataParallel() as other:
            b = other.module.state_dict()
        case FSDP() as sharded:
            a = sharded.state_dict()
        case other:
            b = other.state_dict()
""",
    "a case with a guard": """\
    match model:
        case FSDP() if torch:
            a = model.state_dict()
        case torch.nn.Module() if not isinstance(model, FSDP):
            b = model.state_dict()
        case _:
            a = model.state_dict()
""",
    "a case with parts": """\
    match model:
        case FSDP(training=True):
            a = model.state_dict()
        case _:
            a = model.state_dict()
""",
    "cases of two things": """\
    match sharded, model:
        case True, FSDP() as found:
            a = model.state_dict()
            a = found.state_dict()
        case _, DDP():
            b = model.state_dict()
        case _:
            a = model.state_dict()
""",
    "behind cases": """\
    match model:
        case FSDP():
            return
        case None:
            print("none")
    b = model.state_dict()
""",
    "a case that assigns": """\
    match model:
        case FSDP():
            model = model
        case _:
            model = FSDP(model)
    a = model.state_dict()
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
    source = f"{HEAD}def use(model, sharded=True):\n{body}"
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


FOUND = {
    "an if": """\
    if isinstance(model, FSDP):
        return model.clip_grad_norm_(1.0)
    return None
""",
    "an early return": """\
    if not isinstance(model, FSDP):
        return None
    return model.clip_grad_norm_(1.0)
""",
    "an assertion": """\
    assert isinstance(model, FSDP), "only FSDP"
    return model.clip_grad_norm_(1.0)
""",
    "an operand": """\
    return isinstance(model, FSDP) and model.clip_grad_norm_(1.0)
""",
    "a name for the test": """\
    sharded = isinstance(model, FSDP)
    return model.clip_grad_norm_(1.0) if sharded else None
""",
}
FOUND |= {
    "a function that asks": """\
    if is_sharded(model):
        return model.clip_grad_norm_(1.0)
    return None
""",
    "a function that asks another, and more": """\
    if not trains(model):
        return None
    return model.clip_grad_norm_(1.0)
""",
    "a name for what a function says": """\
    sharded = named(model)
    return model.clip_grad_norm_(1.0) if sharded else None
""",
    "a method that asks": """\
    return Asking().is_sharded(model) and model.clip_grad_norm_(1.0)
""",
}
UNFOUND = {
    "no test": "    return model.clip_grad_norm_(1.0)\n",
    "another class": """\
    if isinstance(model, Clipping):
        return model.clip_grad_norm_(1.0)
    return isinstance(model, FSDP)
""",
    "the other branch": """\
    if isinstance(model, FSDP):
        return None
    return model.clip_grad_norm_(1.0)
""",
    "a function that says no": """\
    if is_sharded(model):
        return None
    return model.clip_grad_norm_(1.0)
""",
    "a function that asks for one of two": """\
    if is_either(model):
        return model.clip_grad_norm_(1.0)
    return None
""",
    "a function that asks for no FSDP": """\
    if is_plain(model):
        return model.clip_grad_norm_(1.0)
    return None
""",
    "a function that does more": """\
    if logs(model):
        return model.clip_grad_norm_(1.0)
    return None
""",
    "another model is asked about": """\
    if is_sharded(torch):
        return model.clip_grad_norm_(1.0)
    return None
""",
    "one of two classes": """\
    if isinstance(model, (FSDP, Clipping)):
        return model.clip_grad_norm_(1.0)
    return None
""",
}


@pytest.mark.parametrize("given", ["Clipping()", "torch.nn.Linear(2, 2)", "None", "missing()"])
@pytest.mark.parametrize("body", (FOUND | UNFOUND).values(), ids=FOUND | UNFOUND)
def test_a_test_tells_whatever_callers_are_known(body: str, given: str) -> None:
    source = f"""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Clipping:
    def clip_grad_norm_(self, limit):
        return limit


def build(net):
    return FSDP(net)


def is_sharded(x):
    \"\"\"Whether it is.\"\"\"
    return isinstance(x, FSDP)


def trains(module):
    return is_sharded(module) and module.training


named = lambda m: is_sharded(m)


class Asking:
    def is_sharded(self, m):
        return isinstance(m, FSDP)


def is_either(x):
    return is_sharded(x) or isinstance(x, Clipping)


def is_plain(x):
    return not isinstance(x, FSDP)


def logs(x):
    x = x.inner
    return isinstance(x, FSDP)


def clip(model):
{body}

print(clip({given}))
"""
    result, after = migrate({"train.py": source})
    assert not result.problems
    assert ("torch.nn.utils.clip_grad_norm_(" in after["train.py"]) is (body in FOUND.values())
    assert ("model.clip_grad_norm_(1.0)" in after["train.py"]) is (body in UNFOUND.values())


CASES = {
    "a class": ("case FSDP():", "case FSDPModule():"),
    "one of two": ("case DDP() | FSDP():", "case DDP() | FSDPModule():"),
    "a dotted name": (
        "case torch.distributed.fsdp.FullyShardedDataParallel():",
        "case FSDPModule():",
    ),
    "what it is": (
        "case FSDP(training=True) as sharded:",
        "case FSDPModule(training=True) as sharded:",
    ),
    "in a list": ("case [FSDP(), *_]:", "case [FSDPModule(), *_]:"),
}
CASE_FILE = """\
import torch
import torch.distributed.fsdp
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def build(net):
    return FSDP(net)


def name(model):
    match model:
        CASE
            return "sharded"
        case _:
            return "plain"


print(name(build(torch.nn.Linear(2, 2))))
"""


@pytest.mark.parametrize("case", CASES)
def test_a_pattern_asks_for_the_new_class(case: str) -> None:
    before, wanted = CASES[case]
    result, after = migrate({"train.py": CASE_FILE.replace("CASE", before)})
    assert not result.problems
    assert f"        {wanted}\n" in after["train.py"]
    assert "fully_shard(net)" in after["train.py"]


LEFT_CASES = {
    "what is inside": "case FSDP(module=inner):",
    "the class itself": "case torch.distributed.fsdp.FullyShardedDataParallel:",
}


@pytest.mark.parametrize("case", LEFT_CASES.values(), ids=LEFT_CASES)
def test_a_pattern_that_would_not_match_holds_the_model_back(case: str) -> None:
    source = CASE_FILE.replace("CASE", case)
    result, after = migrate({"train.py": source})
    assert unmarked(after["train.py"]) == source
    assert any(d.outcome.name == "LEFT" and d.code == "FSDP404" for d in result.decisions)


BESIDE = {
    "FSDP2's models too": """case FSDP():
            return "first"
        case FSDPModule():""",
    "FSDP2's models in the same case": "case FSDP() | FSDPModule():",
}


@pytest.mark.parametrize("case", BESIDE.values(), ids=BESIDE)
def test_a_pattern_beside_one_for_fsdp2_is_left_and_holds_nothing_back(case: str) -> None:
    """No model is of its class any more."""
    result, after = migrate({"train.py": CASE_FILE.replace("CASE", case)})
    assert not result.problems
    assert "return fully_shard(net)" in after["train.py"]
    assert f"        {case}\n" in after["train.py"]
    assert "# TODO(fsdp-migrate FSDP404)" in after["train.py"]
    assert migrate(after)[1] == after


def test_patterns_of_other_classes_stay() -> None:
    result, after = migrate({"train.py": CASE_FILE.replace("CASE", "case DDP() | FSDPModule():")})
    assert not result.problems
    assert "        case DDP() | FSDPModule():\n" in after["train.py"]
