"""A test of a parameter of ``__init__`` tells of the attribute that the parameter is kept in."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

HEAD = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Base:
    def __init__(self, model, name=""):
        self.model = model


"""
MAIN = """

def main(net, plain):
    return Head(FSDP(net)), Head(plain)
"""
BRANCHES = """\
        if isinstance(given, FSDP):
            self.model.module.head = nn.Linear(2, 1)
        else:
            self.model.head = nn.Linear(2, 1)
"""
# The class whose ``self.model`` surely is what ``given`` is.
KNOWN = {
    "kept here": "class Head:\n    def __init__(self, given):\n        self.model = given\n"
    + BRANCHES,
    "kept by the class above": "class Head(Base):\n    def __init__(self, given):\n"
    "        super().__init__(given)\n" + BRANCHES,
    "given by name": "class Head(Base):\n    def __init__(self, given):\n"
    "        super().__init__(name='', model=given)\n" + BRANCHES,
    "super with arguments": "class Head(Base):\n    def __init__(self, given):\n"
    "        super(Head, self).__init__(given, 'x')\n" + BRANCHES,
    "the other way round": "class Head(Base):\n    def __init__(self, given):\n"
    "        super().__init__(given)\n"
    "        if not isinstance(given, FSDP):\n            self.model.head = nn.Linear(2, 1)\n",
    "an early end": "class Head(Base):\n    def __init__(self, given):\n"
    "        super().__init__(given)\n"
    "        if isinstance(given, FSDP):\n            return\n"
    "        self.model.head = nn.Linear(2, 1)\n",
}
ELSE = "        if not isinstance(given, FSDP):\n            self.model.head = nn.Linear(2, 1)\n"
# Those whose ``self.model`` may be something else.
UNKNOWN = {
    "another is kept": "class Head(Base):\n    def __init__(self, given, other=None):\n"
    "        super().__init__(other or given)\n" + ELSE,
    "kept on one branch": "class Head:\n    def __init__(self, given, other=None):\n"
    "        self.model = other\n        if other is None:\n            self.model = given\n"
    + ELSE,
    "the parameter is given another value": "class Head(Base):\n    def __init__(self, given):\n"
    "        super().__init__(given)\n        given = given.children()\n" + ELSE,
    "a subclass sets it as well": "class Head(Base):\n    def __init__(self, given):\n"
    "        super().__init__(given)\n" + ELSE + "\n\nclass Other(Head):\n"
    "    def set(self, net):\n        self.model = FSDP(net)\n",
    "a function is given the object": "def wrap(head):\n    head.model = FSDP(head.model)\n\n\n"
    "class Head(Base):\n    def __init__(self, given):\n        super().__init__(given)\n"
    "        wrap(self)\n" + ELSE,
    "the class above gives a function the object": "def wrap(head):\n"
    "    head.model = FSDP(head.model)\n\n\nclass First:\n    def __init__(self, model):\n"
    "        self.model = model\n        wrap(self)\n\n\n"
    "class Head(First):\n    def __init__(self, given):\n        super().__init__(given)\n" + ELSE,
    "another method": "class Head(Base):\n    def set(self, given):\n" + ELSE,
    "of another object": "class Head(Base):\n    def __init__(self, given, other):\n"
    "        super().__init__(given)\n" + ELSE.replace("self.model.head", "other.model.head"),
}


@pytest.mark.parametrize("source", KNOWN.values(), ids=KNOWN)
def test_what_is_asked_of_the_parameter_is_known_of_the_attribute(source: str) -> None:
    result, after = migrate({"example.py": HEAD + source + MAIN})
    assert "return Head(fully_shard(net)), Head(plain)" in after["example.py"]
    assert "FSDP1 set this on its wrapper" not in after["example.py"]
    assert "self.model.head = nn.Linear(2, 1)" in after["example.py"]
    left = [d for d in result.decisions if d.outcome is Outcome.LEFT]
    assert all("a plain module comes into a sharded model" in d.message for d in left)


@pytest.mark.parametrize("source", UNKNOWN.values(), ids=UNKNOWN)
def test_what_the_parameter_tells_is_not_told_of_another_object(source: str) -> None:
    main = MAIN
    if "set(self, given)" in source:
        main = "\n\ndef main(net, plain):\n    Head(FSDP(net)).set(plain)\n"
    elif "other):" in source:
        main = "\n\ndef main(net, plain):\n    Head(plain, Head(FSDP(net), None))\n"
    elif "other=None" in source:
        main = "\n\ndef main(net, plain):\n    Head(plain, FSDP(net))\n"
    result, after = migrate({"example.py": HEAD + source + main})
    assert unmarked(after["example.py"]) == HEAD + source + main
    assert Outcome.LEFT in {d.outcome for d in result.decisions}
