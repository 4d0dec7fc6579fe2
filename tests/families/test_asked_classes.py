"""Ways to ask for the class of a sharded model, or of its parts, other than ``isinstance``."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes

NET = """\
import functools

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def forward(self, x):
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(2)])


"""
DISPATCHED = """\
@functools.singledispatch
def scale(model):
    return 1.0


{registered}


def main():
    model = FSDP({made}, use_orig_params=True)
    return scale(model)
"""
REGISTERED = [
    "@scale.register\ndef _(model: Net):\n    return 2.0",
    "@scale.register(Net)\ndef scale_net(model):\n    return 2.0",
    "scale.register(Net, lambda model: 2.0)",
    "@scale.register(int)\n@scale.register(Net)\ndef scale_net(model):\n    return 2.0",
]


@pytest.mark.parametrize("registered", REGISTERED)
def test_dispatch_on_the_class_of_a_model(registered: str) -> None:
    result, after = migrate({"a.py": NET + DISPATCHED.format(registered=registered, made="Net()")})
    assert ("FSDP424", Outcome.REVIEW) in outcomes(result)
    assert after["a.py"].count("TODO(fsdp-migrate FSDP424)") == 1


def test_dispatch_by_a_method() -> None:
    program = """\
class Scaler:
    @functools.singledispatchmethod
    def scale(self, model):
        return 1.0

    @scale.register
    def _(self, model: Net):
        return 2.0


def main():
    model = FSDP(Net(), use_orig_params=True)
    return Scaler().scale(model)
"""
    result, _ = migrate({"a.py": NET + program})
    assert ("FSDP424", Outcome.REVIEW) in outcomes(result)


@pytest.mark.parametrize(
    ("registered", "made"),
    [
        ("@scale.register(Block)\ndef scale_block(model):\n    return 2.0", "Net()"),
        ("@scale.register(nn.Module)\ndef scale_any(model):\n    return 2.0", "Net()"),
        ("@scale.register(int)\ndef scale_int(model):\n    return 2.0", "Net()"),
        ("", "Net()"),
    ],
)
def test_dispatch_on_other_classes(registered: str, made: str) -> None:
    result, _ = migrate({"a.py": NET + DISPATCHED.format(registered=registered, made=made)})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}


def test_a_registry_of_ones_own_is_no_dispatch() -> None:
    program = NET + DISPATCHED.format(registered=REGISTERED[1], made="Net()")
    program = program.replace("@functools.singledispatch", "@registry")
    result, _ = migrate({"a.py": program})
    assert "FSDP424" not in {code for code, _ in outcomes(result)}


def test_another_function_of_that_name_chooses_nothing() -> None:
    other = "def scale(model):\n    return 3.0\n\n\ndef ask(model):\n    return scale(model)\n"
    program = NET + DISPATCHED.format(registered=REGISTERED[1], made="Net()").replace(
        "return scale(model)", "return ask(model)"
    )
    program = program.replace("\n\n\n", "\nfrom other import ask\n\n\n", 1)
    result, _ = migrate({"a.py": program, "other.py": other})
    assert "FSDP424" not in {code for code, _ in outcomes(result)}


HELD = """\
class Trainer({base}):
    def __init__(self):
        super().__init__()
        self.model = FSDP(Net(), use_orig_params=True)
        self.other = nn.Linear(2, 2)

    def rate(self):
        return {asked}
"""
ASKED = [
    'isinstance(self.__dict__["model"], Net)',
    'isinstance(vars(self)["model"], Net)',
    'isinstance(self._modules["model"], Net)',
    'isinstance(self.get_submodule("model"), Net)',
    'isinstance(getattr(self, "model"), Net)',
    "sum(isinstance(child, Net) for child in self.children())",
    "[name for name, child in self.named_children() if isinstance(child, Net)]",
    "any(isinstance(child, Net) for child in self._modules.values())",
]


@pytest.mark.parametrize("asked", ASKED)
def test_a_model_that_is_reached_in_another_way(asked: str) -> None:
    result, after = migrate({"a.py": NET + HELD.format(base="nn.Module", asked=asked)})
    assert "FSDP424" in {code for code, _ in outcomes(result)}
    assert "FSDPModule)" in after["a.py"] or "TODO(fsdp-migrate FSDP424)" in after["a.py"]


@pytest.mark.parametrize("asked", ASKED)
def test_other_objects_reached_so(asked: str) -> None:
    asked = asked.replace('"model"', '"other"').replace("Net)", "nn.Conv2d)")
    result, _ = migrate({"a.py": NET + HELD.format(base="nn.Module", asked=asked)})
    assert "FSDP424" not in {code for code, _ in outcomes(result)}


VISITED = """\
TABLE = {{Block: 2.0}}


def cost(m):
    {asked}
    return 0.0


def main():
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{Block}}), use_orig_params=True)
    return model, [{visited}]
"""
GIVEN = ["cost(m) for m in model.modules()", "cost(m) for _, m in model.named_modules()"]


@pytest.mark.parametrize("visited", GIVEN)
@pytest.mark.parametrize(
    ("asked", "code", "outcome"),
    [
        ("return float(type(m) is Block)", "FSDP413", Outcome.REWRITTEN),
        ("kind = type(m)\n    return float(kind == Block)", "FSDP413", Outcome.REWRITTEN),
        ("return TABLE.get(type(m), 0.0)", "FSDP413", Outcome.LEFT),
        ("kind = m.__class__\n    return TABLE.get(kind, 0.0)", "FSDP413", Outcome.LEFT),
        ("return {type(m)}", "FSDP413", Outcome.REVIEW),
        ("kind = type(m)\n    return elsewhere(kind)", "FSDP413", Outcome.REVIEW),
    ],
)
def test_a_function_that_is_given_each_module(
    visited: str, asked: str, code: str, outcome: Outcome
) -> None:
    result, _ = migrate({"a.py": NET + VISITED.format(asked=asked, visited=visited)})
    assert (code, outcome) in outcomes(result)


@pytest.mark.parametrize(
    ("asked", "visited"),
    [
        ("return float(type(m) is Block)", "cost(m) for m in (Block(),)"),
        ("return float(isinstance(m, type(m)))", GIVEN[0]),
        ("print(type(m))", GIVEN[0]),
        ("return type(m).forward is None", GIVEN[0]),
    ],
)
def test_what_has_the_same_answer(asked: str, visited: str) -> None:
    result, _ = migrate({"a.py": NET + VISITED.format(asked=asked, visited=visited)})
    assert "FSDP413" not in {code for code, _ in outcomes(result)}


CHILDREN = """\
def main():
    model = FSDP(Net(), use_orig_params=True)
    net = Net()
    {asked}
    return model
"""


@pytest.mark.parametrize(
    ("asked", "marked"),
    [
        ("parts = list(model.children())", True),
        ("parts = [c for _, c in model.named_children()]", True),
        ("for name in model._modules:\n        print(name)", True),
        ("number = len(list(model.children()))", True),
        ("parts = list(net.children())", False),
        ("parts = list(model.module.children())", False),
        ("parts = [list(m.children()) for m in model.modules()]", False),
        ("leaf = not list(model.children())", False),
        ("print(list(model.children()))", False),
        ('head = model._modules["layers"]', False),
    ],
)
def test_children_of_the_wrapper(asked: str, marked: bool) -> None:
    result, _ = migrate({"a.py": NET + CHILDREN.format(asked=asked)})
    assert ("FSDP425" in {code for code, _ in outcomes(result)}) is marked


DEEPER = {
    "a function": (
        "def count(module):\n    return 1 + sum(count(child) for child in module.children())\n",
        "count(FSDP(Net()))",
        False,
    ),
    "a method": (
        "class Counter:\n    def count(self, module):\n"
        "        return 1 + sum(self.count(child) for child in module.children())\n",
        "Counter().count(FSDP(Net()))",
        False,
    ),
    "another object's method of its name": (
        "def train(module):\n    module.train()\n"
        "    return [child.train(True) for child in module.children()]\n",
        "train(FSDP(Net()))",
        True,
    ),
    "another function": (
        "def count(module):\n    return sum(one(child) for child in module.children())\n\n\n"
        "def one(module):\n    return 1\n",
        "count(FSDP(Net()))",
        True,
    ),
}


@pytest.mark.parametrize(("defined", "called", "marked"), DEEPER.values(), ids=DEEPER)
def test_who_goes_deeper_comes_to_the_same_modules(defined: str, called: str, marked: bool) -> None:
    program = f"{NET}{defined}\n\ndef main():\n    return {called}\n"
    result, _ = migrate({"a.py": program})
    assert ("FSDP425" in {code for code, _ in outcomes(result)}) is marked
