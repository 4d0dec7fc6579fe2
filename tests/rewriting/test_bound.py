"""Every name is bound where it is used, whatever stands between a file's imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.rewriting import check
from fsdp_migrate.rewriting.bound_names.walk import find_unsure_reads
from fsdp_migrate.syntax import name_table_builder
from tests.helpers import binding
from tests.helpers.migrating import migrate, without_support

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP"
BOTH = f"{FSDP}, ShardingStrategy"
LIB = {
    "lib/__init__.py": "",
    "lib/model.py": "from torch import nn\n\n\nclass Net(nn.Linear): ...\n",
}
BUILD = """

def build(strategy=None):
    return FSDP(Net(), sharding_strategy=strategy or DEFAULT)
"""


def between(*lines: str) -> str:
    """A file with lines between its imports, whose ``DEFAULT`` is used in a function."""
    return "\n".join([BOTH, *lines, "from lib.model import Net", BUILD])


MODULE_LEVEL = {
    # a constant
    "a constant": between("DEFAULT = ShardingStrategy.FULL_SHARD"),
    "a constant in a dictionary": between(
        'ALL = {"full": ShardingStrategy.FULL_SHARD}', 'DEFAULT = ALL["full"]'
    ),
    "a constant of a tuple": between("DEFAULT, OTHER = ShardingStrategy.FULL_SHARD, 1"),
    "a constant with a type": between("DEFAULT: object = ShardingStrategy.NO_SHARD"),
    "below a change of the path": (
        f"import os, sys\n{BOTH}\nsys.path.insert(0, os.path.dirname(__file__))\n"
        "DEFAULT = ShardingStrategy.FULL_SHARD\nfrom lib.model import Net\n" + BUILD
    ),
    # a class statement
    "a constant of a class": between(
        "class Config:", "    strategy = ShardingStrategy.FULL_SHARD", "DEFAULT = Config.strategy"
    ),
    "a default of a method": between(
        "class Config:",
        "    def get(self, strategy=ShardingStrategy.FULL_SHARD): return strategy",
        "DEFAULT = Config().get()",
    ),
    "a default of a function": between(
        "def choose(strategy=ShardingStrategy.FULL_SHARD):",
        "    return strategy",
        "DEFAULT = choose()",
    ),
    "an argument of a decorator": between(
        "import functools",
        "def using(strategy):",
        "    def wrap(f):",
        "        f.strategy = strategy",
        "        return f",
        "    return wrap",
        "@using(ShardingStrategy.FULL_SHARD)",
        "def run(): ...",
        "DEFAULT = run.strategy",
    ),
    "a base of a class": between(
        "DEFAULT = None", "class Wrapped(FSDP):", "    pass", "class Other(Wrapped): pass"
    ),
    # a call
    "a call of a local function": between(
        "def choose():", "    return ShardingStrategy.FULL_SHARD", "DEFAULT = choose()"
    ),
    "a call through another function": between(
        "def inner():",
        "    return ShardingStrategy.FULL_SHARD",
        "def outer():",
        "    return inner()",
        "DEFAULT = outer()",
    ),
    "a call of a method": between(
        "class Choice:",
        "    def get(self):",
        "        return ShardingStrategy.FULL_SHARD",
        "DEFAULT = Choice().get()",
    ),
    "a function that is called from a table": between(
        "def full():",
        "    return ShardingStrategy.FULL_SHARD",
        'TABLE = {"full": full}',
        'DEFAULT = TABLE["full"]()',
    ),
    "a lambda that is called": between(
        "full = lambda: ShardingStrategy.FULL_SHARD", "DEFAULT = full()"
    ),
    "a model that is made": between(
        "from torch import nn", "net = FSDP(nn.Linear(2, 2))", "DEFAULT = None"
    ),
    "a decorator that calls": between(
        "def now(f): return f()", "@now", "def DEFAULT():", "    return ShardingStrategy.FULL_SHARD"
    ),
    # several statements on one line
    "three on a line": f"{BOTH}\nimport os; DEFAULT = ShardingStrategy.FULL_SHARD; import sys\n"
    "from lib.model import Net\n" + BUILD,
    "the import and its use on a line": f"{BOTH}; DEFAULT = ShardingStrategy.FULL_SHARD\n"
    "from lib.model import Net\n" + BUILD,
    "the use between two imports on a line": f"import os; {BOTH}; "
    "DEFAULT = ShardingStrategy.FULL_SHARD; from lib.model import Net\n" + BUILD,
    "a model on the line of its import": f"import torch; {FSDP}; "
    "model = FSDP(torch.nn.Linear(2, 2)); from lib.model import Net\nother = FSDP(Net())\n",
    # imports for annotations alone
    "what is imported for annotations": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from torch.distributed.fsdp import FSDPModule, fully_shard\n"
    f"{FSDP}\nfrom lib.model import Net\n\n"
    "def run(model):\n    return isinstance(model, FSDP)\n\nrun(FSDP(Net()))\n",
    "the same with the module's name": "import typing as t\n"
    "if t.TYPE_CHECKING:\n    from torch.distributed.fsdp import fully_shard\n    import torch\n"
    f"{FSDP}\nfrom lib.model import Net\nmodel = FSDP(Net())\n",
    "the first import is for annotations": "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from torch.distributed.fsdp import MixedPrecision\n"
    f"DEFAULT = None\n{FSDP}\nfrom lib.model import Net\n" + BUILD,
    # an import that fails, or not
    "in a try": f"try:\n    {BOTH}\nexcept ImportError:\n    FSDP = ShardingStrategy = None\n"
    "DEFAULT = ShardingStrategy.FULL_SHARD\nfrom lib.model import Net\n" + BUILD,
    "in a try that ends the program": "import sys\n"
    f"try:\n    {BOTH}\nexcept ImportError:\n    sys.exit(1)\n"
    "DEFAULT = ShardingStrategy.FULL_SHARD\nfrom lib.model import Net\n" + BUILD,
    "in a try that raises": f"try:\n    {BOTH}\n"
    "except ImportError as error:\n    raise RuntimeError from error\n"
    "DEFAULT = ShardingStrategy.FULL_SHARD\nfrom lib.model import Net\n" + BUILD,
    "behind a condition": f"import os\nFLAG = True\nif FLAG:\n    {FSDP}\n"
    "from lib.model import Net\nif FLAG:\n    model = FSDP(Net())\n",
    "in both branches": f"import os\nif os.name:\n    {FSDP}\nelse:\n    {FSDP}\n"
    "from lib.model import Net\nmodel = FSDP(Net())\n",
    # a one-line block
    "an import in a one-line block": f"import os\nif os.name: {FSDP}\n"
    "from lib.model import Net\nif os.name: model = FSDP(Net())\n",
    # functions and classes that import for themselves
    "an import in a function": "from lib.model import Net\n\n\ndef build():\n"
    f"    net = Net()\n    {FSDP}\n    model = FSDP(net)\n    return model\n\n\nbuild()\n",
    "an import in a branch of a function": f"{FSDP}\nfrom lib.model import Net\n\n\n"
    f"def build(again):\n    first = FSDP(Net())\n    if again:\n        {FSDP[:-8]} as Again\n"
    "        return Again(Net())\n    return first\n\n\nbuild(True)\nbuild(False)\n",
    "imports in two branches": "from lib.model import Net\n\n\ndef build(again):\n"
    f"    if again:\n        {FSDP}\n        return FSDP(Net())\n"
    f"    {FSDP}\n    return FSDP(Net())\n\n\nbuild(True)\nbuild(False)\n",
    "an import in a class": "from lib.model import Net\n\n\nclass Trainer:\n"
    f"    {FSDP}\n    model = FSDP(Net())\n",
    "an import in a class and one for its methods": f"{FSDP}\nfrom lib.model import Net\n\n\n"
    "class Trainer:\n    from torch.distributed.fsdp import FSDPModule\n\n"
    "    def __init__(self):\n        self.model = FSDP(Net())\n\n\nTrainer()\n",
    # the name is imported below already
    "imported below": f"{FSDP}\nfrom torch import nn\nmodel = FSDP(nn.Linear(2, 2))\n"
    "from torch.distributed.fsdp import fully_shard\nother = fully_shard(nn.Linear(2, 2))\n",
    "imported below for a function": f"{FSDP}\nfrom torch import nn\n\n\ndef build():\n"
    "    return FSDP(nn.Linear(2, 2))\n\n\nmodel = build()\n"
    "from torch.distributed.fsdp import fully_shard\nother = fully_shard(nn.Linear(2, 2))\n",
}


@pytest.mark.parametrize("text", MODULE_LEVEL.values(), ids=MODULE_LEVEL)
def test_each_name_is_bound_where_it_is_used(text: str) -> None:
    files = {**LIB, "train.py": text}
    assert binding.failure(files, "train.py") is None
    result, after = migrate(files)
    assert not result.problems
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}, after["train.py"]
    assert binding.failure(after, "train.py") is None, after["train.py"]
    assert binding.complaints(files, after) == []
    again, _ = migrate(after)
    assert not again.changes


IMPORTED_BACK = {
    "a function that another module calls while this one loads": {
        "train.py": f"import torch\n{BOTH}\n\n\ndef choose():\n"
        "    return ShardingStrategy.FULL_SHARD\n\n\nimport other\n"
        "model = FSDP(torch.nn.Linear(2, 2), sharding_strategy=other.KIND)\n",
        "other.py": "import train\n\nKIND = train.choose()\n",
    },
    "a package and its module": {
        "pkg/__init__.py": f"import torch\n{FSDP}\n\n\ndef build(net):\n    return FSDP(net)\n"
        "\n\nfrom .run import model\nfrom .model import Net\n",
        "pkg/model.py": LIB["lib/model.py"],
        "pkg/run.py": "from torch import nn\nfrom . import build\n\n"
        "model = build(nn.Linear(2, 2))\n",
        "train.py": "from pkg import model\n",
    },
    "a constant that another module asks for": {
        "train.py": f"{BOTH}\nKIND = ShardingStrategy.FULL_SHARD\nfrom other import model\n",
        "other.py": f"import torch\n{FSDP}\nfrom train import KIND\n"
        "model = FSDP(torch.nn.Linear(2, 2), sharding_strategy=KIND)\n",
    },
}


@pytest.mark.parametrize("files", IMPORTED_BACK.values(), ids=IMPORTED_BACK)
def test_modules_that_import_each_other(files: dict[str, str]) -> None:
    assert binding.failure(files, "train.py") is None
    result, after = migrate(files)
    assert not result.problems
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert without_support(after) != files
    assert not isinstance(binding.failure(after, "train.py"), binding.OF_NAMES), after
    assert binding.complaints(files, after) == []


# -- the check before writing -----------------------------------------------------------------

OLD = "from a import old\nold()\n"
LATE = {
    "below its use": (OLD, "new()\nfrom a import new\n"),
    "for annotations": (
        OLD,
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import new\nnew()\n",
    ),
    "for annotations, in a function": (
        "from a import old\ndef f(): old()\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import new\n"
        "def f(): new()\n",
    ),
    "in a branch": (OLD, "import b\nif b.x:\n    from a import new\nnew()\n"),
    "in a loop": (OLD, "for x in y():\n    from a import new\nnew()\ndef y(): ...\n"),
    "in another branch": (
        "import b\nfrom a import old\nif b.x: pass\nelse: old()\n",
        "import b\nif b.x:\n    from a import new\nelse:\n    new()\n",
    ),
    "in a try that may fail": (
        OLD,
        "try:\n    from a import new\nexcept ImportError:\n    pass\nnew()\n",
    ),
    "suppressed": (
        OLD,
        "from contextlib import suppress\nwith suppress(ImportError):\n"
        "    from a import new\nnew()\n",
    ),
    "deleted": (OLD, "from a import new\ndel new\nnew()\n"),
    "deleted before a function runs": (
        "from a import old\ndef f(): old()\n",
        "from a import new\ndef f(): new()\ndel new\n",
    ),
    "a handler's name": (
        "from a import old\ntry: old()\nexcept ValueError: pass\nold()\n",
        "from a import new\ntry: new()\nexcept ValueError as new: pass\nnew()\n",
    ),
    "local below": (
        "from a import old\ndef f(x):\n    old()\n",
        "from a import new\ndef f(x):\n    new()\n    from a import new\n",
    ),
    "local in a branch": (
        "from a import old\ndef f(x):\n    old()\n",
        "from a import new\ndef f(x):\n    if x:\n        from a import new\n    new()\n",
    ),
    "local to an inner function's outer one": (
        "from a import old\ndef f():\n    def g(): old()\n    g()\n",
        "def f():\n    def g(): new()\n    g()\n    from a import new\n",
    ),
    "called above": (
        "from a import old\ndef f(): old()\nf()\n",
        "def f(): new()\nf()\nfrom a import new\n",
    ),
    "called above by another": (
        "from a import old\ndef f(): old()\ndef g(): f()\ng()\n",
        "def f(): new()\ndef g(): f()\ng()\nfrom a import new\n",
    ),
    "made above": (
        "from a import old\nclass C:\n    def __init__(self): old()\nC()\n",
        "class C:\n    def __init__(self): new()\nC()\nfrom a import new\n",
    ),
    "decorated above": (
        "from a import old\nimport b\n@b.run\ndef f(): old()\n",
        "import b\n@b.run\ndef f(): new()\nfrom a import new\n",
    ),
    "given a base above": (
        "from a import old\nimport b\nclass C(b.Base):\n    def f(self): old()\n",
        "import b\nclass C(b.Base):\n    def f(self): new()\nfrom a import new\n",
    ),
    "in a table above": (
        'from a import old\ndef f(): old()\nT = {"f": f}\nT["f"]()\n',
        'def f(): new()\nT = {"f": f}\nT["f"]()\nfrom a import new\n',
    ),
    "by an import above": (
        "from a import old\ndef f(): old()\nimport other\n",
        "def f(): new()\nimport other\nfrom a import new\n",
    ),
    "a default above": (
        "from a import old\ndef f(x=old): ...\n",
        "def f(x=new): ...\nfrom a import new\n",
    ),
    "an annotation above": (
        "from a import old\ndef f(x: old): ...\n",
        "def f(x: new): ...\nfrom a import new\n",
    ),
    "a base above": (
        "from a import old\nclass C(old): ...\n",
        "class C(new): ...\nfrom a import new\n",
    ),
    "a class's constant above": (
        "from a import old\nclass C:\n    x = old\n",
        "class C:\n    x = new\nfrom a import new\n",
    ),
    "in a class, for its method": (
        "from a import old\nclass C:\n    def f(self): old()\nC().f()\n",
        "import b\nif b.x:\n    from a import new\nclass C:\n    from a import new\n"
        "    def f(self): new()\nC().f()\n",
    ),
    "in a comprehension above": (
        "from a import old\n[old for x in y]\ny=1\n",
        "[new for x in y]\ny=1\nfrom a import new\n",
    ),
    "a lambda above": (
        "from a import old\nf = lambda: old\nf()\n",
        "f = lambda: new\nf()\nfrom a import new\n",
    ),
    "moved": ("x = 1\nprint(x)\n", "print(x)\nx = 1\n"),
    "moved in a function": (
        "def f():\n    x = 1\n    print(x)\n",
        "def f():\n    print(x)\n    x = 1\n",
    ),
    "the condition has changed": (
        "from a import old\nimport b\nx = b.x\nif x: y = 1\nx = b.y\nif x: print(old)\n",
        "import b\nx = b.x\nif x:\n    from a import new\nx = b.y\nif x: print(new)\n",
    ),
}
SURE = {
    "the opposite condition": (
        "import b\n\n\ndef f(step):\n    if step == 0:\n        return\n    print(b.x)\n",
        "import b\n\n\ndef f(step):\n    if step != 0:\n        x = b.x\n    if b.y or step == 0:\n"
        "        return\n    print(x)\n",
    ),
    "functions of one name on branches": (
        "import b\nif b.x:\n    from a import old\n    def f(): old()\nelse:\n"
        "    from c import old\n    def f(): old()\n",
        "import b\nif b.x:\n    from a import old\n    def f(): old()\nelse:\n"
        "    from c import new\n    def f(): new()\n",
    ),
    "no more certain than before": (
        "import b\nif b.x:\n    from a import old\nold()\n",
        "import b\nif b.x:\n    from a import new\nnew()\n",
    ),
    "the same doubt": (
        "import b\nif b.x: y = 1\nprint(y)\n",
        "import b\nif b.x: y = 1\nprint(y, b)\n",
    ),
    "in every branch": (
        OLD,
        "import b\nif b.x:\n    from a import new\nelse:\n    new = 1\nnew()\n",
    ),
    "in a try with another value": (
        OLD,
        "try:\n    from a import new\nexcept ImportError:\n    new = None\nnew()\n",
    ),
    "torch in a try": (
        OLD,
        "try:\n    from torch import new\nexcept ImportError:\n    pass\nnew()\n",
    ),
    "or the program ends": (
        OLD,
        "import sys\ntry:\n    from a import new\nexcept ImportError:\n    sys.exit(1)\nnew()\n",
    ),
    "called below": (
        "from a import old\ndef f(): old()\nf()\n",
        "def f(): new()\nfrom torch import new\nf()\n",
    ),
    "asked twice": (
        "from a import old\nimport b\nif b.x: old()\n",
        "import b\nif b.x:\n    from a import new\nif b.x and b.y:\n    new()\n",
    ),
    "annotations that are not read": (
        "from __future__ import annotations\nfrom a import old\ndef f(x: old): ...\n",
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from a import new\ndef f(x: new): ...\n",
    ),
    "a while loop that goes on": (OLD, "while True:\n    from a import new\n    break\nnew()\n"),
    "an else that only older releases ran": (
        "import b\nif b.x > 2:\n    y = 1\nelse:\n    y = 2\nprint(y)\n",
        "import b\nif b.x > 2:\n    y = 1\nprint(y)\n",
    ),
    "a name of its own in a class": (
        "from a import old\n",
        "from a import new\nclass C:\n    new = new\n",
    ),
    "a recursive function": (
        "from a import old\n",
        "from a import new\ndef f(): return f, new\nf()\n",
    ),
}


# ``logger`` may be missing wherever ``main`` leads: in ``save``, and in ``train`` behind it.
LED_TO = """\
def save(): {save}
def train(): save(); {train}
@start
def main():
    global logger
    logger = make()
    train(); save()
"""
LATE["a read that a guard comes to, and that was not there"] = (
    LED_TO.format(save="logger.info(1)", train="pass"),
    LED_TO.format(save="raise E", train="logger.info(2)"),
)
LATE["another function's name of its own"] = (
    "def f(x):\n    if x: y = 1\n    return y\ndef g():\n    y = 2\n    return y\n",
    "def f(x):\n    if x: y = 1\n    return y\ndef g():\n    return y\n    y = 2\n",
)
LATE["a read that an import of the function's own was for"] = (
    LED_TO.format(save="logger.info(1)", train="from a import logger; logger.info(2)"),
    LED_TO.format(save="raise E", train="logger.info(2)"),
)
SURE["the first of several reads is behind a guard now"] = (
    LED_TO.format(save="logger.info(1)", train="logger.info(2)"),
    LED_TO.format(save="raise E; logger.info(1)", train="logger.info(2)"),
)


IN_BRANCH = """\
def build(x):
    if x:
        first = make
        def policy(module):
            return first(module)
    else:
        policy = other
    {between}return policy(x)
"""
SURE["a function of a branch that reads what the branch binds"] = (
    "def build(x): pass\n",
    IN_BRANCH.format(between=""),
)
LATE["a function of a branch whose name was deleted"] = (
    "def build(x): pass\n",
    IN_BRANCH.format(between="if x: del first\n    "),
)
LATE["a function of a branch that reads what another branch binds"] = (
    "def build(x): pass\n",
    IN_BRANCH.format(between="")
    .replace("first = make", "pass")
    .replace("policy = other", "policy, first = other"),
)


NESTED = """\
def save(model, step, first, sharded, best):
    if step % 10 == 0 and step > 0 and sharded:
        state = whole(model)
    if step % 10 == 0 and first:
        loss = evaluate(model)
        if loss < best:
            {between}if step > 0:
                if sharded:
                    write(state)
                {other}
"""
SURE["the parts of a condition are asked one in the other"] = (
    "def save(model): pass\n",
    NESTED.format(between="", other="else: write(model)"),
)
LATE["the parts of a condition are asked one in the other, of another step"] = (
    "def save(model): pass\n",
    NESTED.format(between="step += 1\n            ", other="else: write(model)"),
)
LATE["one part of a condition is not asked"] = (
    "def save(model): pass\n",
    NESTED.format(between="", other="write(state)"),
)


CHOICE = """\
def build(x):
    if x == 2:
        {name} = 1
    {other} x == 3:
        {name} = 2
    return {name}
"""
SURE["a name takes the place of one that was not sure either"] = (
    CHOICE.format(name="old", other="elif"),
    CHOICE.format(name="new", other="elif"),
)
LATE["a name takes the place of one, in one branch less"] = (
    CHOICE.format(name="old", other="elif"),
    CHOICE.format(name="new", other="elif").replace("new = 2", "pass"),
)
LATE["a name takes the place of one, under another condition"] = (
    CHOICE.format(name="old", other="elif"),
    CHOICE.format(name="new", other="elif").replace("x == 3", "x == 4"),
)
LATE["a name takes the place of one that was sure"] = (
    CHOICE.format(name="old", other="else:\n        1 if").replace(" x == 3:", " x else 0"),
    CHOICE.format(name="new", other="elif"),
)
LATE["a name stands beside one that was not sure"] = (
    CHOICE.format(name="old", other="elif"),
    CHOICE.format(name="old", other="elif")
    .replace("        old = 2", "        old = new = 2")
    .replace("return old", "return old, new"),
)


def too_early(old: str, new: str) -> bool:
    before, after = (name_table_builder.build(ast.parse(text)) for text in (old, new))
    return check.too_early(before, after) is not None


@pytest.mark.parametrize(("old", "new"), LATE.values(), ids=LATE)
def test_the_check_refuses_what_may_be_unbound(old: str, new: str) -> None:
    assert too_early(old, new)
    assert not too_early(new, new), "what was so before is not the edit's"


@pytest.mark.parametrize(("old", "new"), SURE.values(), ids=SURE)
def test_the_check_takes_what_is_bound(old: str, new: str) -> None:
    assert not too_early(old, new)


@pytest.mark.parametrize(
    ("text", "unsure"),
    [
        # Nothing of ``build`` runs where it is not made yet.
        ("build()\ndef build():\n    return new()\nfrom torch import new\n", {"build"}),
        ("for _ in '12':\n    build()\ndef build(): new()\nfrom torch import new\n", {"build"}),
        # It may be what an earlier round made, what a branch made, or another of its name.
        (
            "for _ in '12':\n    try:\n        build()\n    except NameError: ...\n"
            "    def build(): new()\nfrom torch import new\n",
            {"build", "new"},
        ),
        (
            "if a:\n    def build(): new()\nbuild()\ndef build(): new()\nfrom torch import new\n",
            {"build", "new"},
        ),
        # A function asks for it when it is called.
        ("def f(): build()\ndef build(): new()\nf()\nfrom torch import new\n", {"new"}),
    ],
)
def test_a_call_in_front_of_its_function_runs_nothing(text: str, unsure: set[str]) -> None:
    table = name_table_builder.build(ast.parse(text))
    assert {d.name for d in find_unsure_reads(table)} == unsure


def test_a_doubt_says_where() -> None:
    table = name_table_builder.build(
        ast.parse("class C:\n    def f(self):\n        new()\nC()\nfrom torch import new\n")
    )
    assert [(d.name, d.place, d.event, d.line) for d in find_unsure_reads(table)] == [
        ("new", "C.f", "by C", 3)
    ]


# -- any order --------------------------------------------------------------------------------

PIECES = [
    "import os",
    "import os; import sys",
    "from lib.model import Net",
    "VALUE_{n} = ShardingStrategy.FULL_SHARD",
    "import sys; VALUE_{n} = ShardingStrategy.NO_SHARD; import os",
    "class Config_{n}:\n    strategy = ShardingStrategy.FULL_SHARD",
    "def choose_{n}(strategy=ShardingStrategy.FULL_SHARD):\n    return strategy\n\n\nchoose_{n}()",
    "def build_{n}(net):\n    return FSDP(net)",
    "def make_{n}(net):\n    return FSDP(net)\n\n\nmodel_{n} = make_{n}(nn.Linear(2, 2))",
    "MADE_{n} = [FSDP(nn.Linear(2, 2))]",
    "wrap_{n} = lambda net: FSDP(net)",
    "class Trainer_{n}:\n    def __init__(self):\n        self.model = FSDP(nn.Linear(2, 2))\n\n\n"
    "Trainer_{n}()",
    "if os.name:\n    other_{n} = FSDP(nn.Linear(2, 2))",
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), min_size=2, max_size=7))
def test_any_order_of_statements_can_be_imported(pieces: list[str]) -> None:
    lines = [piece.format(n=number) for number, piece in enumerate(pieces)]
    text = "\n".join(["import os", "from torch import nn", BOTH, *lines, ""])
    files = {**LIB, "train.py": text}
    assert binding.failure(files, "train.py") is None
    result, after = migrate(files)
    assert not result.problems, text
    assert not any(check.UNSURE in d.message for d in result.decisions), text
    assert not isinstance(binding.failure(after, "train.py"), binding.OF_NAMES), after["train.py"]
    assert binding.complaints(files, after) == []


# -- where torch or its FSDP is missing -------------------------------------------------------

USES = """
def wrap(model):
    return FSDP(model)


def full(model):
    with FSDP.summon_full_params(model):
        return list(model.parameters())
"""
CLIPS = "\n\ndef clip(model):\n    return model.clip_grad_norm_(1.0)\n"
FLAG = "import torch\nflag = torch.distributed.is_available()\nif flag:\n"
GUARDED = {
    "a try and a flag": (
        f"try:\n    import torch\n    {FSDP}\n    HAVE = True\n"
        f"except ImportError:\n    torch = None\n    HAVE = False\n{USES}{CLIPS}"
    ),
    "a try below other imports": (
        f"import os\ntry:\n    {FSDP}\nexcept ImportError:\n    FSDP = None\n{USES}"
    ),
    "a try that ends in None, and a flag": (
        f"try:\n    {FSDP}\n    HAVE = True\nexcept ImportError:\n    FSDP = None\n"
        f"    HAVE = False\n{USES}"
    ),
    "an error that is passed over": (
        f"import contextlib\nwith contextlib.suppress(ImportError):\n    {FSDP}\n{USES}"
    ),
    "functions alone": (
        f"import os\n\n\ndef wrap(model):\n    {FSDP}\n    return FSDP(model)\n{CLIPS}\n\n"
        "def full(model):\n    with wrap(model).summon_full_params(model):\n        pass\n"
    ),
    "for types, in strings": (
        f"import typing\nif typing.TYPE_CHECKING:\n    {FSDP}\n\n\n"
        f'def wrap(model) -> "FSDP":\n    {FSDP}\n    return FSDP(model)\n\n\n'
        'def clip(model: "typing.Optional[FSDP]"):\n    return model.clip_grad_norm_(1.0)\n'
    ),
    "for types that are not evaluated": (
        "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        f"if TYPE_CHECKING:\n    {FSDP}\n\n\n"
        f"def wrap(model) -> FSDP:\n    {FSDP}\n    return FSDP(model)\n\n\n"
        "def clip(model: FSDP) -> float:\n    return model.clip_grad_norm_(1.0)\n"
    ),
}
ASKED = {
    "a flag": f"{FLAG}    {FSDP}\n{USES}",
    "a flag and None": f"{FLAG}    {FSDP}\nelse:\n    FSDP = None\n{USES}",
    "a flag, and a use without FSDP1's names": (
        f"{FLAG}    {FSDP}\n\n\ndef wrap(model):\n    return FSDP(model)\n\n\n"
        "def full(model):\n    with wrap(model).summon_full_params(model):\n        pass\n"
    ),
}
STAND_INS = {
    "a class": f"try:\n    {FSDP}\nexcept ImportError:\n    class FSDP: pass\n",
    "a class and a flag": (
        f"try:\n    {FSDP}\n    HAVE = True\nexcept ImportError:\n    HAVE = False\n"
        "    class FSDP:\n        def __init__(self, *args): raise RuntimeError('no FSDP')\n"
    ),
    "no class": f"try:\n    {FSDP}\nexcept ImportError:\n    FSDP = ()\n",
    "a class behind a flag": f"{FLAG}    {FSDP}\nelse:\n    class FSDP: pass\n",
}


def loads_without(missing: str, files: dict[str, str], directory: Path, then: str = "") -> None:
    """Import a file in a Python of its own that lacks a module, with torch's FSDP off."""
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8")
    program = (
        f"import sys\nsys.path.insert(0, {str(directory)!r})\n"
        f"for name in {missing!r}.split():\n    sys.modules[name] = None\n"
        "if 'torch' not in sys.modules:\n"
        "    import torch.distributed\n    torch.distributed.is_available = lambda: False\n"
        f"import train\n{then}"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + files["train.py"]


@pytest.mark.parametrize("text", GUARDED.values(), ids=GUARDED)
@pytest.mark.parametrize("missing", ["torch.distributed.fsdp", "torch"])
def test_a_guard_goes_on_guarding(text: str, missing: str, tmp_path: Path) -> None:
    if missing == "torch":
        missing = "torch torch.distributed torch.distributed.fsdp"
    loads_without(missing, {"train.py": text}, tmp_path)
    result, after = migrate({"train.py": text})
    assert not result.problems
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}, after["train.py"]
    loads_without(missing, after, tmp_path)


@pytest.mark.parametrize("text", ASKED.values(), ids=ASKED)
def test_a_question_goes_on_guarding(text: str, tmp_path: Path) -> None:
    loads_without("torch.distributed.fsdp", {"train.py": text}, tmp_path)
    result, after = migrate({"train.py": text})
    assert not result.problems
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}, after["train.py"]
    loads_without("torch.distributed.fsdp", after, tmp_path)


@pytest.mark.parametrize("text", [*GUARDED.values(), *ASKED.values()], ids=[*GUARDED, *ASKED])
def test_what_is_guarded_works_where_it_is_there(text: str) -> None:
    _, after = migrate({"train.py": text})
    assert binding.failure(after, "train.py") is None, after["train.py"]
    again, _ = migrate(after)
    assert not again.changes


@pytest.mark.parametrize("text", STAND_INS.values(), ids=STAND_INS)
def test_a_stand_in_goes_on_standing_in(text: str, tmp_path: Path) -> None:
    text += "\n\ndef is_sharded(model):\n    return isinstance(model, FSDP)\n"
    text += "\n\ndef wrap(model):\n    return FSDP(model)\n"
    result, after = migrate({"train.py": text})
    assert not result.problems
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    asked = "assert not train.is_sharded(1)\n"
    loads_without("torch.distributed.fsdp", after, tmp_path, asked)


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
def test_an_annotation_that_is_evaluated_has_a_stand_in(future: str, tmp_path: Path) -> None:
    text = f"{future}try:\n    {FSDP}\nexcept ImportError:\n    FSDP = None\n\n\n"
    text += "def same(model: FSDP): return model\n\n\ndef wrap(model): return FSDP(model)\n"
    result, after = migrate({"train.py": text})
    assert not result.problems
    expected = Outcome.REWRITTEN if future else Outcome.LEFT
    assert {d.outcome for d in result.decisions} == {expected}
    loads_without("torch.distributed.fsdp", after, tmp_path)
