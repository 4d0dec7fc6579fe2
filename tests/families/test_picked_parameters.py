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
    "parameters of a plain model": (
        "rest = [m.weight for m in nn.Linear(2, 2).modules() if isinstance(m, nn.LayerNorm)]\n"
    ),
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_what_picks_nothing_needs_no_review(use: str) -> None:
    result, after = migrate({"example.py": FLAT + use})
    assert after["example.py"].endswith(use)
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)
