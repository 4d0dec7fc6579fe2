"""Which dataclasses are registered as pytree nodes, for which torch, and which are left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from fsdp_migrate.analysis.module import Library
from fsdp_migrate.discovery import search
from fsdp_migrate.migration import engine
from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax.source import Source
from tests.helpers.migrating import REGISTRY, ROOT, migrate

HEAD = """\
import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, enable_wrap, wrap
from functools import partial

half = MixedPrecision(param_dtype=torch.bfloat16)


"""
OUT = """\
@dataclass
class Out:
    x: torch.Tensor
    name: str = ""


"""
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x{given}):
        {body}


{wrap}
"""


def net(body: str, wrap: str = "model = FSDP(Net())", given: str = "", out: str = OUT) -> str:
    return HEAD + out + NET.format(body=body, wrap=wrap, given=given)


def registered(source: str, target: str = "2.7") -> list[str]:
    result, after = migrate({"example.py": source}, Options(target=Version(target)))
    assert not result.problems
    assert not [d for d in result.decisions if d.outcome is Outcome.LEFT and d.code == "FSDP421"]
    return re.findall(
        r"^register_dataclass\((\w+)\)  # so that fully_shard finds its tensors$",
        after["example.py"],
        re.MULTILINE,
    )


def reasons(files: dict[str, str]) -> list[str]:
    """Why dataclasses are left; no constructor is rewritten beside them."""
    result, _ = migrate(files)
    assert not result.problems
    rewritten = {d.code for d in result.decisions if d.outcome is not Outcome.LEFT}
    assert "FSDP101" not in rewritten
    return [d.message for d in result.decisions if d.code == "FSDP421"]


RETURNED = {
    "a call": "return Out(self.layer(x))",
    "a name": "out = Out(x=self.layer(x))\n        return out",
    "in a tuple": "return self.layer(x), Out(x)",
    "in a dict of lists": 'return {"out": [Out(self.layer(x))]}',
    "in a comprehension": "return [Out(self.layer(y)) for y in x]",
    "replaced": "return dataclasses.replace(Out(x), x=self.layer(x))",
    "under a condition": "return Out(self.layer(x)) if self.training else self.layer(x)",
}


@pytest.mark.parametrize("body", RETURNED.values(), ids=RETURNED)
def test_what_forward_returns_is_registered(body: str) -> None:
    assert registered(net(body)) == ["Out"]


WRAPS = {
    "settings": "def build(**settings):\n    return FSDP(Net(), **settings)",
    "partial": "wrap_all = partial(FSDP, device_id=0)\nmodel = wrap_all(Net())",
    "enable_wrap": "with enable_wrap(wrapper_cls=FSDP):\n    model = wrap(Net())",
    "a unit": "model = FSDP(nn.Sequential(Net()), auto_wrap_policy=ModuleWrapPolicy({Net}))",
    "twice": "model = FSDP(Net())\nother = FSDP(Net())",
}


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_however_the_model_is_wrapped(wrap: str) -> None:
    assert registered(net("return Out(self.layer(x))", wrap)) == ["Out"]


def test_what_other_methods_and_models_return_is_registered() -> None:
    inner = OUT + NET.replace("Net", "Inner").format(
        body="return self.make(x)\n\n    def make(self, x):\n        return Out(x)",
        given="",
        wrap="",
    )
    source = net("return self.layer(x)", out=inner).replace(
        "nn.Linear(4, 4)\n\n    def forward(self, x):\n        return self",
        "Inner()\n\n    def forward(self, x):\n        return self",
    )
    assert registered(source) == ["Out"]
    derived = net("return super().forward(x)", out=inner).replace(
        "class Net(nn.Module)", "class Net(Inner)"
    )
    assert registered(derived) == ["Out"]
    called = net(
        "return self.layer(x)\n\n    def loss(self, x):\n        return Out(self.layer(x).mean())",
        "model = FSDP(Net())\nmodel.loss(batch).x.backward()",
    )
    assert registered(called) == ["Out"]


def test_dataclasses_in_fields_are_registered_but_for_those_without_tensors() -> None:
    inner = """\
@dataclass
class Settings:
    depth: int
    names: list[str]

    def __post_init__(self):
        check(self)


@dataclass
class Part:
    x: torch.Tensor


@dataclass
class Out:
    parts: "list[Part]"
    settings: Settings


"""
    assert registered(net("return Out([Part(x)], self.settings)", out=inner)) == ["Part", "Out"]


@pytest.mark.parametrize(
    ("target", "expected"), [("2.6", 1), ("2.7", 1), ("2.11", 1), ("2.12", 0), ("2.13", 0)]
)
def test_outputs_are_registered_before_2_12(target: str, expected: int) -> None:
    assert len(registered(net("return Out(self.layer(x))"), target)) == expected


@pytest.mark.parametrize(("target", "expected"), [("2.7", ["Out"]), ("2.8", []), ("2.12", [])])
def test_inputs_are_registered_before_2_8(target: str, expected: list[str]) -> None:
    annotated = net("return self.layer(x)", "model = FSDP(Net(), mixed_precision=half)", ", y: Out")
    assert registered(annotated, target) == expected
    given = net("return x", "model = FSDP(Net(), mixed_precision=half)\ny = model(Out(batch))")
    assert registered(given, target) == expected


NOTHING = {
    "no mixed precision": net("return self.layer(x)", given=", y: Out"),
    "settings as input": net(
        "return self.layer(x)",
        "model = FSDP(Net(), mixed_precision=half)",
        ", y: Out",
        out="@dataclass\nclass Out:\n    depth: int = 1\n\n\n",
    ),
    "only used inside": net("return Out(self.layer(x)).x"),
    "not a unit": net(
        "return Out(self.layer(x))",
        "class Root(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.net = Net()\n\n    def forward(self, x):\n        return self.net(x).x\n\n\n"
        "model = FSDP(Root(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))",
    ),
    "a NamedTuple": net(
        "return Out(self.layer(x))", out="class Out(NamedTuple):\n    x: torch.Tensor\n\n\n"
    ),
    "transformers registers it": net(
        "return Out(self.layer(x))",
        out="from transformers.utils import ModelOutput\n\n\n"
        "@dataclass\nclass Out(ModelOutput):\n    x: torch.Tensor = None\n\n\n",
    ),
    "an attrs class": net(
        "return Out(self.layer(x))",
        out="import attr\n\n\n@attr.dataclass\nclass Out:\n    x: torch.Tensor\n\n\n",
    ),
    "registered": net(
        "return Out(self.layer(x))", out=f"{OUT}torch.export.register_dataclass(Out)\n\n\n"
    ),
    "registered with others": net(
        "return Out(self.layer(x))",
        out=f"from torch.utils import _pytree\n\n\n{OUT}for cls in (Out,):\n"
        "    _pytree.register_dataclass(cls)\n\n\n",
    ),
}


@pytest.mark.parametrize("source", NOTHING.values(), ids=NOTHING)
def test_nothing_is_registered(source: str) -> None:
    assert registered(source) == []


def test_inputs_of_a_container_of_blocks_are_registered() -> None:
    """The blocks that a list holds are not seen, but what they are called with is."""
    source = (
        HEAD
        + OUT
        + """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, given):
        return self.layer(given.x)


blocks = [Block()]
model = FSDP(nn.Sequential(*blocks), mixed_precision=half)
model(Out(torch.ones(2, 4))).sum().backward()
"""
    )
    assert registered(source) == ["Out"]


def out(*lines: str, base: str = "", decorator: str = "@dataclass") -> str:
    body = "".join(f"    {line}\n" for line in lines)
    return f"{decorator}\nclass Out{base}:\n    x: torch.Tensor\n{body}\n\n"


LEFT = {
    "runs again: __post_init__": out("def __post_init__(self):", "    self.n = 1"),
    "runs again: __init__": out("def __init__(self, y):", "    self.x = y"),
    "not taken: a field": out("n: int = field(init=False, default=0)"),
    "not taken: all": out(decorator="@dataclass(init=False)"),
    "not kept": out("n: dataclasses.InitVar[int] = 0"),
    "another library's base": "from other import Base\n\n\n" + out(base="(Base)"),
    "pytrees": "from torch.utils import _pytree\n\n\n" + out(),
    "two definitions": out() + out("y: int = 0"),
}


@pytest.mark.parametrize("definition", LEFT.values(), ids=LEFT)
def test_what_may_be_made_otherwise_is_left_and_its_model_held_back(definition: str) -> None:
    assert reasons({"example.py": net("return Out(self.layer(x))", out=definition)})


CHANGED = {
    "assigned": "state.x = self.layer(state.x)",
    "added to": "state.x += 1",
    "an entry": 'state.name["x"] = x',
    "an element": "state.name.append(x)",
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_what_forward_changes_is_left(change: str) -> None:
    source = net(f"{change}\n        return state", given=", state: Out")
    assert "changes" in reasons({"example.py": source})[0]


def test_what_forward_makes_may_be_changed() -> None:
    for change in CHANGED.values():
        assert registered(net(f"state = Out(x)\n        {change}\n        return state")) == ["Out"]
    read = net("y = state.name[0], state.x.shape\n        return state", given=", state: Out")
    assert registered(read) == ["Out"]
    other = net("x.name = 1\n        return Out(self.layer(x))")
    assert registered(other.replace("(self, x)", "(self, x: Any)")) == ["Out"]


def test_a_class_in_another_file_is_registered_there(tmp_path: Path) -> None:
    sources = {
        "outputs.py": "from dataclasses import dataclass\n\nimport torch\n\n\n"
        + OUT.strip()
        + "\n",
        "net.py": "from torch import nn\n\nfrom outputs import Out\n\n\n"
        + NET.format(body="return Out(self.layer(x))", given="", wrap="").strip()
        + "\n",
        "train.py": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "from net import Net\n\nmodel = FSDP(Net())\n",
    }
    _, after = migrate(sources)
    assert after["outputs.py"].endswith(
        'name: str = ""\n\n\nregister_dataclass(Out)  # so that fully_shard finds its tensors\n'
    )
    assert after["net.py"] == sources["net.py"]
    for path, text in sources.items():
        (tmp_path / path).write_text(text)
    assert names(search.find([tmp_path]).others) == ["outputs.py"]


def test_a_class_in_a_file_that_is_not_edited_is_left_where_the_model_is_wrapped() -> None:
    path = ROOT / "outputs.py"
    text = "from dataclasses import dataclass\n\n\n@dataclass\nclass Out:\n    x: object\n"
    library = Library(frozenset({path}), lambda p: Source.parse(text.encode(), path=p))
    source = net("return Out(self.layer(x))", out="from outputs import Out\n\n\n")
    files = {ROOT / "example.py": source.encode()}
    sources, _ = engine.read(files, {})
    result = engine.rewrite(sources, None, REGISTRY, library)
    [left] = [d for d in result.decisions if d.code == "FSDP421"]
    assert "nothing else to migrate" in left.message
    assert list(result.changes) == [ROOT / "example.py"]
    new = result.changes[ROOT / "example.py"].decode()
    assert "# TODO(fsdp-migrate FSDP421)" in new
    assert new.splitlines()[-1] == "model = FSDP(Net())"


def names(paths: Sequence[Path] | dict[Path, bytes]) -> list[str]:
    return sorted(path.name for path in paths)


SETTLED = OUT.replace(
    '    name: str = ""\n', "\n    def __post_init__(self):\n        self.n = 1\n"
)


@pytest.mark.parametrize(
    ("policy", "migrated"), [("ModuleWrapPolicy({nn.Linear})", True), ("policy", False)]
)
def test_a_root_is_reduced_with_units_whose_outputs_are_seen(policy: str, migrated: bool) -> None:
    """Measured on 2.7.1: one unit that backward reaches is enough, and the marker says so."""
    wrap = f"def build(policy):\n    return FSDP(Net(), auto_wrap_policy={policy})"
    source = net("return Out(self.layer(x))", wrap=wrap, out=SETTLED)
    result, after = migrate({"example.py": source}, Options(target=Version("2.7")))
    found = [d for d in result.decisions if d.code == "FSDP421"]
    assert [d.outcome for d in found] == [Outcome.LEFT]
    assert ("fully_shard(" in after["example.py"]) == migrated
    assert ("the root only trains if" in found[0].message) == migrated
