"""FSDP422: which tests of names had another answer under FSDP1."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import re

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

SKIP = {{"cls_token"}}
PATTERN = re.compile(r"blocks\\.[0-9]+\\.mlp")
LORA = re.compile("lora_")


def layer_of(name):
    parts = name.split(".")
    return int(parts[1]) if len(parts) > 1 else 0


def last_of(name):
    return name.split(".")[-1]


def setup(net):
    model = FSDP(net, use_orig_params=True)
    {body}
    return model
"""
TESTS = [
    'n.startswith("head")',
    'n == "head.weight"',
    'n != "head.weight"',
    "n in SKIP",
    "n not in SKIP",
    'n.split(".")[0] == "head"',
    'any(n.startswith(k) for k in ("head", "norm"))',
    're.match("head", n)',
    '"layers.0.attention" in n',
    're.search("^head", n)',
    're.search(r"layers\\.(\\d+)\\.attention", n)',
    "PATTERN.search(n)",
    "layer_of(n) == 1",
    'n.endswith("0.weight")',
    '"fsdp" in n',
    '"_fsdp" not in n',
]
OTHERS = [
    'n.endswith("bias")',
    '"lora_" in n',
    '"layers.0." in n',
    'n.split(".")[-1] == "bias"',
    'n == ""',
    "p.requires_grad",
    're.search("lora", n)',
    "LORA.search(n)",
    're.sub("lora", "", n)',
    "last_of(n)",
]


def marked(body: str) -> list[str]:
    result, _ = migrate({"example.py": PROGRAM.format(body=body)})
    return [d.outcome.value for d in result.decisions if d.code == "FSDP422"]


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("method", ["named_parameters", "named_modules", "named_buffers"])
def test_a_name_that_begins_otherwise(test: str, method: str) -> None:
    if test != TESTS[-1]:
        assert marked(f"found = [p for n, p in model.{method}() if {test}]") == ["review"]
    loop = f"for n, p in model.{method}():\n        if {test.replace('0.weight', '.0.weight')}:"
    assert marked(f"{loop}\n            p.requires_grad_(False)") == ["review"]


@pytest.mark.parametrize("test", OTHERS)
def test_a_name_that_goes_on_the_same(test: str) -> None:
    assert marked(f"found = [p for n, p in model.named_parameters() if {test}]") == []


@pytest.mark.parametrize(
    "body",
    [
        'named = list(model.named_parameters())\n    found = [p for n, p in named if n == "head"]',
        'found = [p for i, (n, p) in enumerate(model.named_parameters()) if n == "head"]',
        'found = [p for n, p in dict(model.named_parameters()).items() if n == "head"]',
        "named = dict(model.named_buffers())\n    ns = [n for n, b in named.items() if n in SKIP]",
        "for (n, p), (m, q) in zip(model.named_parameters(), net): assert n == m  # if n",
        "for (n, p), (m, q) in zip(net, model.named_parameters()): assert n == m  # if n",
        'for (n, p), m in zip(net, model.named_parameters()): assert n == "head"',
        # made from a model among others
        "one = [net, model][1]\n    own = set(one)\n    ns = [n for n, m in one.named_modules()]",
        "own = names([model][0])\n    ns = [n for n, m in [model][0].named_modules() if n in own]",
    ],
)
def test_names_that_are_gone_over_elsewhere(body: str) -> None:
    asked = " if n" in body and "own" not in body
    assert marked(body) == (["review"] if asked else [])


PICKING = """\
def pick(named, other=()):
    return [p for n, p in named if {test}]


def inside(found):
    for n, p in found.items():
        if {test}:
            print(n)


def setup("""


@pytest.mark.parametrize("test", TESTS[:4])
@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("pick(model.named_parameters())", True),
        ("named = list(model.named_parameters())\n    pick(named)", True),
        ("pick(named=model.named_buffers())", True),
        ("inside(dict(model.named_modules()))", True),
        ("pick((), model.named_parameters())", False),
        ("pick(net.named_parameters())", False),
        ("pick(model.module.named_parameters())", False),
        ("inside(model)", False),
    ],
)
def test_names_that_a_function_is_given(
    test: str, body: str, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = PROGRAM.replace("def setup(", PICKING.replace("{test}", test))
    monkeypatch.setitem(globals(), "PROGRAM", program)
    assert marked(body) == ["review"] * is_said


def test_a_function_that_takes_the_part_out_is_given_names(monkeypatch: pytest.MonkeyPatch) -> None:
    clean = PICKING.replace("{test}", 'n.replace("_fsdp_wrapped_module.", "") == "head"')
    monkeypatch.setitem(globals(), "PROGRAM", PROGRAM.replace("def setup(", clean))
    assert marked("pick(model.named_parameters())") == []


FOUND = 'found = [p for n, p in {} if n.startswith("head")]'
PLAIN = """\
for n, p in model.named_parameters():
        n = {}
        p.requires_grad_(n.startswith("head"))"""


@pytest.mark.parametrize(
    "body",
    [
        # plain in FSDP1 too
        f"with FSDP.summon_full_params(model):\n        {FOUND.format('model.named_parameters()')}",
        FOUND.format("model.module.named_parameters()"),
        FOUND.format("net.named_buffers()"),
        # as the model's own
        f"own = names(model)\n    {FOUND.format('model.named_parameters()')}".replace(
            'n.startswith("head")', "n in own"
        ),
        # made plain first
        PLAIN.format("plain(n)"),
        PLAIN.format('n.replace("_fsdp_wrapped_module.", "")'),
    ],
)
def test_a_name_that_is_plain(body: str) -> None:
    assert marked(body) == []


@pytest.mark.parametrize(
    "statement",
    ['PREFIX = "_fsdp_wrapped_module"', '"_fsdp_wrapped_module"', 'PREFIX: str = "_fpw_module"'],
)
def test_a_prefix_that_stands_on_its_own_holds_no_model_back(statement: str) -> None:
    result, after = migrate(
        {"example.py": PROGRAM.format(body="pass"), "names.py": f"{statement}\n"}
    )
    assert not result.problems
    assert "fully_shard(net)" in after["example.py"]
    assert statement in after["names.py"]


OWN_METHOD = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def take(self, state):
        for name, p in self.named_parameters():
            if name in state:
                p.copy_(state[name])


def build(state):
    model = FSDP(Net(), use_orig_params=True{more})
    model.module.take(state)
"""


@pytest.mark.parametrize(("more", "times"), [("", 1), (", unheard_of=True", 0)])
def test_names_in_a_models_own_method_stand_and_fall_with_it(more: str, times: int) -> None:
    result, after = migrate({"example.py": OWN_METHOD.format(more=more)})
    assert not result.problems
    assert after["example.py"].count("TODO(fsdp-migrate FSDP422)") == times
