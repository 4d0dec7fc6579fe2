"""The report names what may be a parameter of a sharded model, since one went into what made it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

TOP = """\
import functools
import weakref

import elsewhere
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Hidden:
    def __init__(self, it):
        self.it = it


def same(it):
    return it


def named(**things):
    return things["it"]


def each(it):
    yield it


def keep(it):
    def give():
        return it

    return give


def size(p):
    return p.grad.norm()


flag = bool(1)
"""
LOOP = """
model = {made}
total = 0
for p in model.parameters():
    total = total + {asked}
"""
REDUCED = """
def add(total, p):
    return total + {asked}


model = {made}
total = functools.reduce(add, model.parameters(), torch.zeros(()))
dist.all_reduce(total)
"""
SHARDED, PLAIN = "FSDP(nn.Linear(4, 4), use_orig_params=True)", "nn.Linear(4, 4)"
HIDING = {
    "next(iter([p]))": "what next() does",
    "[0, p].pop()": "what pop() does",
    "Hidden(p).it": "what Hidden() does",
    "same(p)": "what same() does",
    "named(**{'it': p})": "what named() does",
    "keep(p)()": "what keep() does",
    "next(each(p))": "what next() does",
    "getattr(Hidden(p), 'it')": "what getattr() does",
    "elsewhere.passed(p)": "what passed() does",
}


def said(program: str) -> list[str]:
    """What the report names of the lines that add up."""
    text = TOP + program
    lines = text.splitlines()
    result, _ = migrate({"train.py": text})
    return [each.why for each in result.not_followed if "total +" in lines[each.line - 1]]


@pytest.mark.parametrize("hidden", HIDING)
@pytest.mark.parametrize("asked", ["{}.norm()", "{}.grad.detach().pow(2).sum()"])
def test_what_is_asked_of_it_is_named(hidden: str, asked: str) -> None:
    given = asked.format(hidden)
    assert any(HIDING[hidden] in why for why in said(REDUCED.format(made=SHARDED, asked=given)))
    assert not said(REDUCED.format(made=PLAIN, asked=given))


@pytest.mark.parametrize("hidden", ["next(iter([p]))", "elsewhere.passed(p)", "named(it=p)"])
@pytest.mark.parametrize("asked", ["{}.shape[0]", "{}.mul_(2)", "torch.norm({})"])
def test_in_a_loop(hidden: str, asked: str) -> None:
    given = asked.format(hidden)
    assert said(LOOP.format(made=SHARDED, asked=given))
    assert not said(LOOP.format(made=PLAIN, asked=given))


@pytest.mark.parametrize(
    "asked",
    [
        "size(p).sum()",  # a function of the project's, which is asked itself
        "torch.stack([p.grad.norm()]).sum()",
        "functools.reduce(max, [p.norm()]).sum()",
        "abs(p.norm()).sum()",
        "elsewhere.table[flag].sum()",
        "elsewhere.passed(flag).sum()",
        "elsewhere.object.passed(p.name).sum()",
    ],
)
def test_what_is_computed_is_another_thing(asked: str) -> None:
    assert not said(LOOP.format(made=SHARDED, asked=asked))


def test_what_a_rule_answers_is_not_named_as_well() -> None:
    given = "(p if flag else p).norm()"
    assert not said(REDUCED.format(made=SHARDED, asked=given))
    _, after = migrate({"train.py": TOP + REDUCED.format(made=SHARDED, asked=given)})
    assert given not in after["train.py"]


@pytest.mark.parametrize("made", [SHARDED, PLAIN])
def test_a_list_that_map_is_given(made: str) -> None:
    program = f"""
model = {made}
grads = [p.grad for p in model.parameters()]
total = 0 + torch.stack(list(map(torch.norm, elsewhere.passed(grads)))).sum()
"""
    result, _ = migrate({"train.py": TOP + program})
    named = ["what passed() does with a model is not followed"]
    assert [each.why for each in result.not_followed] == (named if made == SHARDED else [])


PARTS = """
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        return {part}.forward(x)


model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({{nn.Linear}}))
model(torch.ones(2, 4))
"""


@pytest.mark.parametrize(
    ("part", "named"),
    [
        ("same(self.first)", ["what same() does with a model is not followed"]),
        ("Hidden(self.first).it", ["what Hidden() does with a model is not followed"]),
        ("self.first", []),  # which a rule answers
        ("Hidden(flag).it", []),
        ("elsewhere.built(self.args)", []),
    ],
)
def test_a_part_whose_forward_is_called(part: str, named: list[str]) -> None:
    result, _ = migrate({"train.py": TOP + PARTS.format(part=part)})
    assert [each.why for each in result.not_followed] == named


OPTIMIZER = """
model = {made}
optimizer = torch.optim.AdamW(model.parameters())
torch.save({hidden}.state_dict(), "optimizer.pt")
"""


@pytest.mark.parametrize("hidden", ["next(iter([optimizer]))", "elsewhere.passed(optimizer)"])
def test_an_optimizer_whose_state_is_asked_for(hidden: str) -> None:
    result, _ = migrate({"train.py": TOP + OPTIMIZER.format(made=SHARDED, hidden=hidden)})
    assert len(result.not_followed) == 1
    result, _ = migrate({"train.py": TOP + OPTIMIZER.format(made=PLAIN, hidden=hidden)})
    assert not result.not_followed


def test_a_list_that_a_function_out_of_sight_picks() -> None:
    loop = """
model = {made}
for p in elsewhere.picked(model.parameters()):
    total = 0 + p.norm()
"""
    result, _ = migrate({"train.py": TOP + loop.format(made=SHARDED)})
    assert [each.why for each in result.not_followed] == [
        "what picked() does with a model is not followed"
    ]
    result, _ = migrate({"train.py": TOP + loop.format(made=PLAIN)})
    assert not result.not_followed


@pytest.mark.parametrize(
    "over",
    ["weakref.ref(found)()", "[*model.parameters()]", "sorted(found, key=id)", "same(found)"],
)
def test_a_loop_over_what_gives_a_list(over: str) -> None:
    program = f"""
model = {{made}}
found = model.parameters()
total = torch.stack([p.grad.norm() ** 2 for p in {over}]).sum()
dist.all_reduce(total)
"""
    _, after = migrate({"train.py": TOP + program.format(made=SHARDED)})
    assert "p.grad.norm() ** 2" not in after["train.py"]
    given = program.format(made=PLAIN)
    _, after = migrate({"train.py": TOP + given})
    assert after["train.py"].endswith(given)
