"""Which parts of a model a training step may leave out, as its forward is written."""

from __future__ import annotations

import textwrap

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

MODEL = """\
import random

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.part = Part()
        self.parts = nn.ModuleList([Part() for _ in range(3)])
        self.scale = nn.Parameter(torch.ones(4))
        self.dropout = nn.Dropout()
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, x, y=None, fast=False):
{body}

    def both(self, x):
        return self.second(self.first(x))


def build(config, batches):
    model = FSDP(Model(config){arguments})
    for batch in batches:
        model({call})
    return model
"""


def parts(
    body: str, *, call: str = "batch.x, y=batch.y", arguments: str = "", target: str = "2.7"
) -> tuple[str, str]:
    """The parts that are said to be left out, and the text after a run."""
    body = textwrap.indent(textwrap.dedent(body).strip("\n"), 8 * " ")
    files = {"example.py": MODEL.format(body=body, call=call, arguments=arguments)}
    result, after = migrate(files, Options(target=Version(target)))
    assert not result.problems
    found = [d for d in result.decisions if d.code == "FSDP420"]
    assert all(d.outcome in {Outcome.REVIEW, Outcome.REWRITTEN} for d in found)
    named = " ".join(d.message.removeprefix("a step may not use ") for d in found)
    return named.replace("Model.", ""), after["example.py"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("x = self.first(x)\nif y is not None:\n    x = self.second(x)\nreturn x", "second"),
        ("return self.first(x) if x.sum() > 0 else self.second(x)", "first, second"),
        ("if y is None:\n    return self.first(x)\nreturn self.both(x)", "second"),
        ("if random.random() < 0.1:\n    return x\nreturn self.part(x)", "part"),
        ("if torch.rand(1) < self.config.drop:\n    x = self.part(x)\nreturn x", "part"),
        ("k = y.argmax()\nreturn self.parts[k](x)", "parts"),
        ("for part, on in zip(self.parts, y):\n    if on:\n        x = part(x)\nreturn x", "parts"),
        ("for p in self.parts:\n    if y[0]:\n        continue\n    x = p(x)\nreturn x", "parts"),
        ("if y is not None:\n    x = x * self.scale\nreturn x", "scale"),
        ("if y is not None:\n    x = x * self.scale[y]\nreturn x", "scale"),
        (
            "if y is not None:\n    x = nn.functional.linear(x, self.first.weight)\nreturn x",
            "first",
        ),
        (
            "run = torch.utils.checkpoint.checkpoint\n"
            "if y is not None:\n    x = run(self.part, x)\nreturn x",
            "part",
        ),
    ],
)
def test_what_a_step_may_leave_out_is_named(body: str, named: str) -> None:
    assert parts(body)[0] == named


@pytest.mark.parametrize(
    "body",
    [
        "return self.both(self.part(x))",
        "return self.first(x) + self.scale[y]",  # rows of one parameter: all of it has a gradient
        "return self.first(x) + self.scale[x.argmax(-1)].tanh()",
        "if self.config.deep:\n    x = self.part(x)\nreturn self.first(x)",
        "if self.training:\n    x = self.part(x)\nreturn self.first(x)",
        "if self.part is not None:\n    x = self.part(x)\nreturn x",
        "if y is not None:\n    return self.first(x)\nreturn self.first(x[:, -1:])",
        "x = self.first(x)\nif y is not None:\n    return self.criterion(x, y)\nreturn x",
        "x = self.first(x)\nif y is not None:\n    x = self.dropout(x)\nreturn x",
        "if x.shape[-1] != 4:\n    raise ValueError(x)\nreturn self.first(x)",
        "if y is None:\n    raise ValueError(y)\nreturn self.first(x)",
        "if x.size(0) > 4:\n    x = self.part(x)\nreturn x",
        "for i, p in enumerate(self.parts):\n    if i % 2:\n        x = p(x)\nreturn x",
        "if fast:\n    return x\nreturn self.first(x)",
        "x = self.first(x)\nif y is not None:\n    x = x.to(self.second.weight.dtype)\nreturn x",
        "if isinstance(y, list):\n    x = self.part(x)\nreturn x",
        "if y is not None:\n    self.part.requires_grad_(False)\nreturn self.first(x)",
    ],
)
def test_what_every_step_does_is_not(body: str) -> None:
    assert parts(body)[0] == ""


BRANCH = "if y is not None:\n    x = self.part(x)\nreturn self.first(x)"


def test_a_unit_that_is_left_out_has_no_gradients_in_either() -> None:
    policy = ", auto_wrap_policy=ModuleWrapPolicy({Part})"
    assert parts(BRANCH, arguments=policy)[0] == ""
    other = ", auto_wrap_policy=ModuleWrapPolicy({nn.LayerNorm})"
    assert parts(BRANCH, arguments=other)[0] == "part"


LISTING = """\

    def units(self):
        found = [*list(self.parts), self.first]
        if hasattr(self, "part"):
            found.append(self.part)
        return found

    def both(self, x):"""


@pytest.mark.parametrize(
    ("predicate", "named"),
    [
        ("isinstance(m, Part)", ""),
        ("isinstance(m, nn.LayerNorm) or isinstance(m, Part)", ""),
        ("m in net.units()", ""),
        ("isinstance(m, nn.LayerNorm)", "part"),
        ("isinstance(m, Part) and m.inner.in_features > 4", "part"),
        ("m in net.parts", "part"),
        ("m is net.part or chosen(m)", "part"),
    ],
)
def test_units_of_predicates_are_known(
    predicate: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = MODEL.replace("ModuleWrapPolicy", "CustomPolicy").replace(
        "\n    def both(self, x):", LISTING
    )
    model = model.replace("model = FSDP(Model(config)", "net = Model(config)\n    model = FSDP(net")
    monkeypatch.setitem(globals(), "MODEL", model)
    policy = f", auto_wrap_policy=CustomPolicy(lambda m: {predicate})"
    assert parts(BRANCH, arguments=policy)[0] == named


def test_units_of_joined_policies_are_known() -> None:
    joined = "functools.partial(wrap._or_policy, policies=[ModuleWrapPolicy({{Part}})])"
    imports = "import functools\n\nfrom torch.distributed.fsdp import wrap\n"
    body = textwrap.indent(BRANCH, 8 * " ")
    source = MODEL.replace("{arguments}", f", auto_wrap_policy={joined}")
    result, _ = migrate({"example.py": imports + source.format(body=body, call="batch.x, batch.y")})
    assert "FSDP420" not in {d.code for d in result.decisions}


def test_where_units_are_not_known_those_of_their_own_are_told_apart() -> None:
    _, text = parts(BRANCH, arguments=", auto_wrap_policy=policy")
    assert "where they share a unit with others" in " ".join(text.replace("#", "").split())
    assert "where they share" not in parts(BRANCH)[1]


def test_an_argument_that_nothing_gives_is_its_default() -> None:
    body = "if fast:\n    x = self.part(x)\nreturn self.first(x)"
    assert parts(body)[0] == ""
    assert parts(body, call="batch.x, fast=batch.fast")[0] == "part"
    assert parts(body, call="**batch")[0] == "part"


def test_what_is_given_by_a_batch_is_seldom_all() -> None:
    """``if embeds is None: x = self.embed(tokens)`` is what models from libraries say."""
    usual = "if y is None:\n    y = self.part(x)\nreturn self.first(y)"
    assert parts(usual, call="**batch")[0] == ""
    assert parts(usual, call="**batch, y=batch.y")[0] == "part"
    assert parts(BRANCH, call="**batch")[0] == "part"


def test_torch_2_13_is_told() -> None:
    setter = "set_reduce_scatter_unused_params"
    named, text = parts(BRANCH, target="2.12")
    assert named == "part"
    assert f"model.{setter}" not in text
    _, text = parts(BRANCH, target="2.13")
    assert f"    model.{setter}(True, recurse=False)\n" in text
    assert "TODO" not in text


def test_classes_of_one_name_in_two_files_are_named_once() -> None:
    part = """\
from torch import nn


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else x
"""
    source = """\
import one
import two
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Sequential(one.Part(), two.Part(), nn.Linear(4, 4)))
"""
    result, _ = migrate({"train.py": source, "one.py": part, "two.py": part})
    (found,) = [d for d in result.decisions if d.code == "FSDP420"]
    assert found.message.count("Part.inner") == 1


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("batch.x, batch.y", "part"),
        ("*batch", "part"),
        ("batch.x, None", ""),
        ("batch.x", ""),
    ],
)
def test_an_input_may_be_given_by_its_place(call: str, named: str) -> None:
    assert parts(BRANCH, call=call)[0] == named


@pytest.mark.parametrize(
    ("given", "call", "named"),
    [
        ("x, y", "batch.x, batch.y", "first, part"),
        ("x, y", "batch.x, y=batch.y", "first, part"),
        ("x, self.config.other", "batch.x, batch.y", ""),
        ("x, None", "batch.x, batch.y", ""),
    ],
)
def test_an_input_may_be_handed_to_a_method(
    given: str, call: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = """\
    def mixed(self, x, other=None):
        return self.first(x) if other is None else self.part(x)


def build("""
    monkeypatch.setitem(globals(), "MODEL", MODEL.replace("\ndef build(", mixed, 1))
    assert parts(f"return self.mixed({given})", call=call)[0] == named


@pytest.mark.parametrize(
    "calls",
    [
        "    forward = model\n    for batch in batches:\n        forward(batch.x, batch.y)",
        "    for batch in batches:\n        model.forward(batch.x, batch.y)",
        "    for batch in batches:\n        functools.partial(model, batch.x)(batch.y)",
        "    for batch in batches:\n        checkpoint(model, batch.x, batch.y)",
        "    class Trainer:\n        @property\n        def net(self):\n"
        "            return model\n\n"
        "    trainer = Trainer()\n    for batch in batches:\n        trainer.net(batch.x, batch.y)",
    ],
    ids=["another name", "forward itself", "a partial", "checkpointing", "a property"],
)
def test_a_model_is_called_in_other_ways(calls: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = "    for batch in batches:\n        model({call})"
    assert plain in MODEL
    monkeypatch.setitem(globals(), "MODEL", MODEL.replace(plain, calls))
    assert parts(BRANCH)[0] == "part"


def test_a_function_of_the_project_is_no_model() -> None:
    """What it is given is given to no forward."""
    assert parts(BRANCH, call="prepared(batch.x, batch.y)")[0] == ""
