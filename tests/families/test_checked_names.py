"""Names of parameters that only decide whether the program stops, and names of settings."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Keyed(torch.optim.Optimizer):
    def __init__(self, params):
        self.params = params
        self.param_groups = [{"params": list(params.values()), "lr": 0.1}]

    def use(self, known, found):
        BODY


def train(net, known):
    model = FSDP(net)
    Keyed(dict(model.named_parameters())).use(known, [])
"""


def names(body: str) -> list[str]:
    lines = body.splitlines()
    indented = "\n".join([lines[0], *(f"        {line}" for line in lines[1:])])
    result, _ = migrate({"a.py": PROGRAM.replace("BODY", indented)})
    return [d.code for d in result.decisions if d.site.construct.name == "parameter name"]


@pytest.mark.parametrize(
    "body",
    [
        "for key, p in self.params.items():\n    if key not in known:\n        raise KeyError(key)",
        (
            "for key, p in self.params.items():\n    if key in known:\n        print(key)\n"
            "        raise KeyError(key)\n    found.append(p)"
        ),
        (
            "for group in self.param_groups:\n    for key, value in group.items():\n"
            '        if key != "params":\n            known[key] = value'
        ),
        "for key, p in self.params.items():\n    known[key] = p",
    ],
)
def test_names_that_choose_nothing_are_not_marked(body: str) -> None:
    assert names(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "for key, p in self.params.items():\n    if key not in known:\n        found.append(p)",
        (
            "for key, p in self.params.items():\n    if key in known:\n        raise KeyError\n"
            "    else:\n        found.append(p)"
        ),
        (
            'for key, p in self.params.items():\n    if "bias" in key:\n        continue\n'
            "    if key not in known:\n        raise KeyError(key)\n    found.append(p)"
        ),
    ],
)
def test_names_that_choose_parameters_are(body: str) -> None:
    assert names(body) == ["FSDP408"]
