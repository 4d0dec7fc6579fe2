"""Classes out of tables that a program fills: what their methods give back is followed.

Where it is not, a method of what nobody knows may be any of its name that gives back a model: what
is otherwise about parameters is said then, and nothing is written for what may be no model.
"""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

STRATEGIES = """\
import functools
from torch.distributed.fsdp import FullyShardedDataParallel

{before}
{first}
class Plain{base}:
    def wrap(self, model):
        return model

{second}
class Sharded{base}:
    def wrap(self, model):
        return FullyShardedDataParallel(model, use_orig_params=True)

{after}
"""
TRAINING = """\
import importlib
import sys

import torch
from strategies import {imported}


def main(name, net):
    strategy = {made}
    model = strategy.{method}(net)
    decay = [p for p in model.parameters() if p.ndim > 1]
    return torch.optim.AdamW(decay)
"""
BUILD = "def build(name):\n    return TABLE[name]()\n"
TABLE = "TABLE = {}\n"
BY_NAME = """\
def register(name):
    def decorate(cls):
        TABLE[name] = cls
        return cls
    return decorate
"""
DIRECTLY = "def register(cls):\n    {add}\n    return cls\n"
REGISTRY = """\
class Registry:
    def __init__(self, kind):
        self.kind = kind
        self._classes = {}

    def register(self, name):
        def decorate(cls):
            self._classes[name] = cls
            return cls
        return decorate

    def add(self, cls):
        self._classes[cls.__name__] = cls
        return cls

    def build(self, name, *args):
        if name not in self._classes:
            raise KeyError(name)
        return self._classes[name](*args)


TABLE = Registry("strategy")
"""
MAPPING = """\
import collections


class Registry({base}):
    def register(self, name):
        def decorate(cls):
            self[name] = cls
            return cls
        return decorate

    def add(self, cls):
        self.setdefault(cls.__name__, cls)
        return cls

    def build(self, name, *args):
        return self[name](*args)


TABLE = Registry()
"""
INITIALISED = """\
class Base:
    TABLE = {}

    def __init_subclass__(cls, **settings):
        super().__init_subclass__(**settings)
        Base.TABLE[cls.__name__] = cls
"""
EMPTY = "class Base:\n    pass\n"


def is_marked(
    before: str = "",
    decorator: str = "",
    after: str = BUILD,
    made: str = "build(name)",
    base: str = "",
    method: str = "wrap",
) -> bool:
    """Whether what is asked of the parameters is marked: FSDP1's are flat."""
    strategies = STRATEGIES.format(
        before=before,
        first=decorator.format("plain"),
        second=decorator.format("sharded"),
        base=base,
        after=after,
    )
    imported = "build" if "def build" in after and "build(" in made else "*"
    training = TRAINING.format(imported=imported, made=made, method=method)
    result, migrated = migrate({"strategies.py": strategies, "training.py": training})
    assert not result.problems
    return "FSDP408" in migrated["training.py"]


@pytest.mark.parametrize(
    ("before", "decorator"),
    [
        (TABLE + BY_NAME, '@register("{}")'),
        ("TABLE: dict[str, type] = {}\n" + BY_NAME, '@register("{}")'),
        ("TABLE = dict()\n" + BY_NAME, '@register("{}")'),
        (TABLE + DIRECTLY.format(add="TABLE[cls.__name__.lower()] = cls"), "@register"),
        (TABLE + DIRECTLY.format(add="TABLE.setdefault(cls.__name__, cls)"), "@register"),
        (TABLE + DIRECTLY.format(add="TABLE.update({cls.__name__: cls})"), "@register"),
    ],
)
@pytest.mark.parametrize(
    "after", [BUILD, BUILD.replace("[name]", ".get(name)"), BUILD.replace("[name]", ".pop(name)")]
)
def test_what_a_decorator_puts_into_a_dictionary(before: str, decorator: str, after: str) -> None:
    assert is_marked(before, decorator, after)


@pytest.mark.parametrize("base", ["dict", "collections.OrderedDict", "collections.UserDict"])
@pytest.mark.parametrize(
    ("decorator", "made"),
    [
        ('@TABLE.register("{}")', "TABLE.build(name)"),
        ("@TABLE.add", "TABLE[name]()"),
        ('@TABLE.register("{}")', "TABLE.get(name)()"),
    ],
)
def test_a_registry_that_is_a_dictionary(base: str, decorator: str, made: str) -> None:
    assert is_marked(MAPPING.format(base=base), decorator, "", made=made)


def test_what_a_dictionary_of_another_class_has_is_not_in_it() -> None:
    others = (
        MAPPING.format(base="dict") + "\n\nclass Others(dict):\n    pass\n\n\nOTHERS = Others()\n"
    )
    assert not is_marked(others, '@TABLE.register("{}")', "", made="OTHERS[name]()", method="to")


@pytest.mark.parametrize("decorator", ['@TABLE.register("{}")', "@TABLE.add"])
def test_a_registry_of_the_projects_own(decorator: str) -> None:
    assert is_marked(REGISTRY, decorator, "", made="TABLE.build(name)")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            EMPTY,
            "def build(name):\n    return {c.__name__: c for c in Base.__subclasses__()}[name]()",
        ),
        (
            EMPTY,
            "def build(name):\n    return next(c for c in Base.__subclasses__() if c.n == name)()",
        ),
        (INITIALISED, BUILD.replace("TABLE", "Base.TABLE")),
    ],
)
def test_the_subclasses_of_a_class(before: str, after: str) -> None:
    assert is_marked(before, after=after, base="(Base)")


@pytest.mark.parametrize(
    ("after", "made"),
    [
        ("def build(name):\n    return globals()[name]()", "build(name)"),
        ("", 'getattr(sys.modules["strategies"], name)()'),
        ("", 'getattr(importlib.import_module("strategies"), name)()'),
        ('def build(name):\n    return type("Mine", (Sharded,), {})()', "build(name)"),
        ("def build(name, **classes):\n    return classes[name]()", "build(name, a=Sharded)"),
        ("def build(name):\n    return load(name)", "build(name)"),
    ],
)
def test_a_method_of_what_nobody_knows_may_be_any_of_its_name(after: str, made: str) -> None:
    assert is_marked(after=after, made=made)


@pytest.mark.parametrize(
    ("after", "made", "method"),
    [
        (
            BUILD.replace("TABLE[name]", "Plain"),
            "build(name)",
            "wrap",
        ),  # another class of that name
        ("TABLE = {'a': Plain}\n" + BUILD, "build(name)", "wrap"),
        ("def build(name):\n    return load(name)", "build(name)", "prepare"),  # of no class here
        ("def build(name):\n    return load(name)", "build(name)", "forward"),  # of every module
    ],
)
def test_what_is_none_of_them_is_not_marked(after: str, made: str, method: str) -> None:
    assert not is_marked(after=after, made=made, method=method)


def test_a_class_that_is_not_registered_is_not_made_by_the_registry() -> None:
    before = TABLE + DIRECTLY.format(add="TABLE[cls.__name__] = cls")
    strategies = STRATEGIES.format(
        before=before, first="@register", second="", base="", after=BUILD
    )
    training = TRAINING.format(imported="build", made="build(name)", method="wrap")
    _, migrated = migrate({"strategies.py": strategies, "training.py": training})
    assert migrated["training.py"] == training


UNKNOWN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, factory):
        net = factory.get_model("net")
        {asked}
        self.model = FSDP(net{settings})
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def get_model(self):
        return self.model
"""
ELSEWHERE = """\
import torch
from somelib import Fabric


def run(engine, net):
    model = {made}.get_model(net)
    model.load_state_dict(torch.load("before.pt"))
    torch.save(model.state_dict(), "after.pt")
    {asked}
"""


@pytest.mark.parametrize("made", ["engine", "Fabric()"])
@pytest.mark.parametrize("asked", ["return model", "return type(model)"])
def test_nothing_is_written_for_what_may_be_no_model(made: str, asked: str) -> None:
    training = UNKNOWN.format(asked="pass", settings=", use_orig_params=True")
    other = ELSEWHERE.format(made=made, asked=asked)
    _, migrated = migrate({"training.py": training, "other.py": other})
    assert migrated["other.py"] == other


def test_what_another_library_gives_back_is_none_of_the_projects_models() -> None:
    training = UNKNOWN.format(asked="pass", settings="")
    asked = "return [p.shape for p in model.parameters()]"
    other = ELSEWHERE.format(made="Fabric()", asked=asked)
    _, migrated = migrate({"training.py": training, "other.py": other})
    assert migrated["other.py"] == other


def test_what_is_sharded_later_is_no_model_before() -> None:
    asked = "print(sum(p.numel() for p in net.parameters()))"
    source = UNKNOWN.format(asked=asked, settings=", use_orig_params=True")
    _, migrated = migrate({"training.py": source})
    assert "TODO" not in migrated["training.py"]


def test_an_optimizer_from_before_the_wrap_is_seen_behind_what_nobody_knows() -> None:
    source = UNKNOWN.format(
        asked="self.early = torch.optim.SGD(net.parameters(), lr=0.1)", settings=""
    )
    _, migrated = migrate({"training.py": source})
    assert "FSDP403" in migrated["training.py"]


FUNCTIONS = """\
import types
from collections import OrderedDict

import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel


def replicated(net):
    return DistributedDataParallel(net)


def sharded(net):
    return FullyShardedDataParallel(net)


{table}


def main(name, net):
    model = TABLE[name](net)
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize(
    "table",
    [
        "TABLE = {'a': replicated, 'b': sharded}",
        "TABLE = dict(a=replicated, b=sharded)",
        "TABLE = dict([('a', replicated), ('b', sharded)])",
        "TABLE = OrderedDict([('a', replicated), ('b', sharded)])",
        "TABLE = types.MappingProxyType({'a': replicated, 'b': sharded})",
    ],
)
def test_functions_out_of_a_table(table: str) -> None:
    _, migrated = migrate({"training.py": FUNCTIONS.format(table=table)})
    assert "get_model_state_dict(model" in migrated["training.py"]
    assert "else model.state_dict()" in migrated["training.py"]


@pytest.mark.parametrize(
    "table",
    [
        "TABLE = dict(a=replicated)",
        "TABLE = OrderedDict([('a', replicated)])",
        "TABLE = types.MappingProxyType({'a': replicated})",
    ],
)
def test_other_functions_out_of_a_table(table: str) -> None:
    source = FUNCTIONS.format(table=table)
    _, migrated = migrate({"training.py": source})
    assert 'torch.save(model.state_dict(), "model.pt")' in migrated["training.py"]


def test_a_class_bound_without_a_module_shards_nothing_that_is_written() -> None:
    """The arguments of FSDP1 are bound in one file, and its model is made elsewhere."""
    build = (
        "from functools import partial\n\nfrom somelib import check\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def run(net):\n    check(net, decoration=partial(FSDP, use_orig_params=True))\n"
    )
    training = UNKNOWN.format(asked="pass", settings="")
    asked = "return [p.numel() for p in model.parameters()]"
    other = ELSEWHERE.format(made="engine", asked=asked)
    result, _ = migrate({"build.py": build, "training.py": training, "other.py": other})
    assert not result.problems
