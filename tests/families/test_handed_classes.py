"""FSDP1's class as an argument: ``FSDPModule`` takes its place where it is only asked with."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

USER = """\
from pydantic_core import core_schema
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from asking import *


def build(net):
    model = FSDP(net)
    return model, USE
"""
ONLY_ASKS = {
    "a function": (
        "count(model, FSDP)",
        "def count(m, kind):\n    if not isinstance(m, kind):\n        raise TypeError(m)\n",
    ),
    "by keyword": (
        "count(model, kind=FSDP)",
        "def count(m, kind=None):\n    return [x for x in m.modules() if isinstance(x, kind)]\n",
    ),
    "issubclass": (
        "count(model, FSDP)",
        "def count(m, kind):\n    assert issubclass(type(m), kind)\n",
    ),
    "a class that keeps it": (
        "Check(FSDP)(model)",
        "class Check:\n    def __init__(self, kind):\n        self.kind_of_part = kind\n\n"
        "    def __call__(self, m):\n        assert isinstance(m, self.kind_of_part)\n",
    ),
    "a test that asserts": (
        "case.assertIsInstance(model, FSDP, 'sharded')",
        "import unittest\n\n\ncase = unittest.TestCase()\n",
    ),
    "a test that asserts, by keyword": (
        "case.assertIsInstance(obj=model, cls=FSDP)",
        "import unittest\n\n\nclass Case(unittest.TestCase):\n    pass\n\n\ncase = Case()\n",
    ),
    "pydantic": (
        "Check(FSDP)",
        "from pydantic_core import core_schema\n\n\n"
        "class Check:\n    def __init__(self, kind):\n        self.kind_of_part = kind\n\n"
        "    def __get_pydantic_core_schema__(self, source, handler):\n"
        "        return core_schema.json_or_python_schema(\n"
        "            json_schema=core_schema.is_instance_schema(self.kind_of_part),\n"
        "            python_schema=core_schema.is_instance_schema(cls=self.kind_of_part),\n"
        "        )\n",
    ),
}
DOES_MORE = {
    "its name": ("count(model, FSDP)", "def count(m, kind):\n    return kind.__name__\n"),
    "makes models": ("count(net, FSDP)", "def count(m, kind):\n    return kind(m)\n"),
    "exact classes": ("count(model, FSDP)", "def count(m, kind):\n    return type(m) is kind\n"),
    "its answer is used elsewhere": (
        "[m for m in model.modules() if not count(m, FSDP)]",
        "def count(m, kind):\n    return isinstance(m, kind)\n",
    ),
    "units are passed over": (
        "count(model, FSDP)",
        "def count(m, kind):\n    for x in m.modules():\n        if isinstance(x, kind):\n"
        "            continue\n        x.reset()\n",
    ),
    "what is no unit is picked": (
        "count(model, FSDP)",
        "def count(m, kind):\n    return [x for x in m.modules() if not isinstance(x, kind)]\n",
    ),
    "takes wrappers off": (
        "count(model, FSDP)",
        "def count(m, kind):\n    while isinstance(m, kind):\n        m = m.module\n    return m\n",
    ),
    "hands it on": (
        "count(model, FSDP)",
        "def count(m, kind):\n    print(isinstance(m, kind))\n    return registry.find(kind)\n",
    ),
    "a class that makes some": (
        "Check(FSDP)(model)",
        "class Check:\n    def __init__(self, kind):\n        self.kind_of_part = kind\n\n"
        "    def __call__(self, m):\n        return isinstance(m, self.kind_of_part)\n\n\n"
        "def make(check, net):\n    return check.kind_of_part(net)\n",
    ),
    "a test that asserts the opposite": (
        "case.assertNotIsInstance(model.inner, FSDP)",
        "import unittest\n\n\ncase = unittest.TestCase()\n",
    ),
    "an assertion of the project's own": (
        "Case().assertIsInstance(net, FSDP)",
        "class Case:\n    def assertIsInstance(self, m, kind):\n        return kind(m)\n",
    ),
    "nobody asks": ("count(model, FSDP)", "def count(m, kind):\n    return m\n"),
    "a library's": ("nn.ModuleList(FSDP)", "registry = {}\n"),
}


@pytest.mark.parametrize(("use", "asking"), ONLY_ASKS.values(), ids=ONLY_ASKS)
def test_it_is_fsdp2s_where_it_is_only_asked_with(use: str, asking: str) -> None:
    result, after = migrate({"user.py": USER.replace("USE", use), "asking.py": asking})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert f"return model, {use.replace('FSDP', 'FSDPModule')}" in after["user.py"]
    assert after["asking.py"] == asking
    assert not migrate(after)[0].changes


@pytest.mark.parametrize(("use", "asking"), DOES_MORE.values(), ids=DOES_MORE)
def test_it_stays_where_more_is_done_with_it(use: str, asking: str) -> None:
    result, after = migrate({"user.py": USER.replace("USE", use), "asking.py": asking})
    assert Outcome.LEFT in {d.outcome for d in result.decisions}
    assert f"return model, {use}\n" in after["user.py"]
