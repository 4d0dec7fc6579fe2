"""Parameters that are picked by their names or the kind of their module, for weight decay, say."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), {})


"""
FLAT, OWN = HEAD.format("use_orig_params=False"), HEAD.format("use_orig_params=True")
PICKING = {
    "by kind, of a module's own": (
        "def groups(net):\n    decay, rest = [], []\n    for m in net.modules():\n"
        "        for p in m.parameters(recurse=False):\n"
        "            if isinstance(m, nn.LayerNorm):\n                rest.append(p)\n"
        "            else:\n                decay.append(p)\n    return decay, rest\n\n\n"
        "groups(model)\n"
    ),
    "by name, in sets of names": (
        "decay = set()\nfor mn, m in model.named_modules():\n"
        "    for pn, p in m.named_parameters():\n        full = f'{mn}.{pn}'\n"
        "        if pn.endswith('weight'):\n            decay.add(full)\n"
    ),
    "by kind, in a list": (
        "rest = [m.weight for m in model.modules() if isinstance(m, nn.LayerNorm)]\n"
    ),
    "by kind, an attribute of each": (
        "rest = {}\nfor name, m in model.named_modules():\n"
        "    if isinstance(m, nn.LayerNorm):\n        rest[name] = m.bias\n"
    ),
}

LOOP = "found, rest = [], []\nfor n, p in model.named_parameters():\n"
PICKING |= {
    "by name, whose answer has a name": (
        LOOP + "    biased = n.lower().endswith('bias')\n    if biased:\n        found.append(p)\n"
    ),
    "by name, numbered": (
        "for i, (n, p) in enumerate(model.named_parameters()):\n    if 'bias' in n:\n"
        "        p.requires_grad_(False)\n"
    ),
    "by name, beside another model's": (
        "for (n, p), (m, q) in zip(model.named_parameters(), model.named_parameters()):\n"
        "    if 'bias' in n:\n        q.requires_grad_(False)\n"
    ),
    "by name, of a dictionary": (
        "found = [p for n, p in dict(model.named_parameters()).items() if 'bias' in n]\n"
    ),
    "by name, of a dictionary made one by one": (
        "named = {n: p for n, p in model.named_parameters()}\n"
        "found = [p for n, p in named.items() if 'bias' in n]\n"
    ),
    "by name, of a list": (
        "named = list(model.named_parameters())\nfound = [p for n, p in named if 'bias' in n]\n"
    ),
    "by name, in lists by kind": (
        "groups = {}\nfor n, p in model.named_parameters():\n"
        "    groups.setdefault(n.split('.')[-1], []).append(p)\n"
    ),
    "by name, a rate for each": (
        "groups = []\nfor n, p in model.named_parameters():\n    scale = 0.5 ** n.count('bias')\n"
        "    groups.append({'params': [p], 'lr': 0.1 * scale})\n"
    ),
    "by name, frozen": (
        "for n, p in model.named_parameters():\n    p.requires_grad = 'bias' in n\n"
    ),
    "by name, in a pattern": (
        LOOP + "    match n.split('.')[-1]:\n        case 'bias':\n            found.append(p)\n"
    ),
    "by name, filtered": (
        "found = [p for n, p in filter(lambda x: 'bias' in x[0], model.named_parameters())]\n"
    ),
    "by place": ("found = [p for i, p in enumerate(model.parameters()) if i < 2]\n"),
}


@pytest.mark.parametrize("use", PICKING.values(), ids=PICKING)
def test_what_flat_parameters_hid_is_marked(use: str) -> None:
    result, after = migrate({"example.py": FLAT + use})
    assert "fully_shard(nn.Seq" in after["example.py"]
    found = [d for d in result.decisions if d.code == "FSDP408"]
    assert [d.outcome for d in found] == [Outcome.REVIEW]


@pytest.mark.parametrize("use", PICKING.values(), ids=PICKING)
def test_with_parameters_of_its_own_the_model_goes_on(use: str) -> None:
    result, after = migrate({"example.py": OWN + use})
    assert after["example.py"].endswith(use)
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)


OTHERS = {
    "modules alone": (
        "norms = []\nfor m in model.modules():\n    if isinstance(m, nn.LayerNorm):\n"
        "        norms.append(m)\n"
    ),
    "what is initialised": (
        "for m in nn.Linear(2, 2).modules():\n    if isinstance(m, nn.Linear):\n"
        "        nn.init.zeros_(m.bias)\n"
    ),
    "every parameter": "found = []\nfor m in model.modules():\n    found.extend(m.parameters())\n",
    "a label": "norms = {}\nfor n, p in model.named_parameters():\n    norms[n] = p.grad\n",
    "a label, made longer": (
        "log = {}\nfor n, p in model.named_parameters():\n    key = f'grad/{n}'\n"
        "    log[key] = p.grad\n"
    ),
    "a label of a group": (
        "groups = [{'params': [p], 'name': n} for n, p in model.named_parameters()]\n"
    ),
    "what is kept under a name": (
        "before = {}\nfor n, p in model.named_parameters():\n    old = before.get(n)\n"
        "    if old is None:\n        before[n] = p.grad\n"
    ),
    "numbers of what is no parameter": (
        "for i, x in enumerate([1, 2]):\n    if i:\n        print(x)\n"
    ),
    "parameters of a plain model": (
        "rest = [m.weight for m in nn.Linear(2, 2).modules() if isinstance(m, nn.LayerNorm)]\n"
    ),
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_what_picks_nothing_needs_no_review(use: str) -> None:
    result, after = migrate({"example.py": FLAT + use})
    assert after["example.py"].endswith(use)
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)


OWN_METHOD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))

    def forward(self, x):
        return self.layers(x)

    def optimizer(self):
        decay = set()
        for mn, m in self.named_modules():
            for pn, p in m.named_parameters():
                if pn.endswith("weight") and isinstance(m, nn.Linear):
                    decay.add(f"{mn}.{pn}")
        named = dict(self.named_parameters())
        return torch.optim.AdamW([named[n] for n in sorted(decay)])


"""


def _in_its_method(made: str) -> tuple[int, str]:
    """How many places are for review, and the file, of a method that picks by its own modules."""
    result, after = migrate({"example.py": OWN_METHOD + made})
    assert "fully_shard(" in after["example.py"]
    marked = [d for d in result.decisions if d.outcome is Outcome.REVIEW]
    return len(marked), after["example.py"]


def test_a_method_of_the_model_that_picks_by_its_own_modules_is_marked() -> None:
    count, after = _in_its_method("model = FSDP(Net())\noptimizer = model.optimizer()\n")
    assert count == 1
    assert after.index("FSDP408") < after.index("for mn, m in self.named_modules()")


@pytest.mark.parametrize(
    "made",
    [
        "model = FSDP(Net(), use_orig_params=True)\noptimizer = model.optimizer()\n",
        "net = Net()\noptimizer = net.optimizer()\nmodel = FSDP(nn.Linear(4, 4))\n",
        "model = FSDP(Net())\noptimizer = torch.optim.AdamW(model.parameters())\n",
    ],
    ids=["parameters of its own", "another model", "never called"],
)
def test_a_method_that_meets_no_flat_parameter_is_not(made: str) -> None:
    count, after = _in_its_method(made)
    assert (count, "FSDP408" in after) == (0, False)
