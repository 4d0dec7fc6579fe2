"""Parameters told by their class while a forward runs, where FSDP1's were views."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SOURCE = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def joined(parameters):
    return torch.cat(list(parameters[:2]))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ParameterList([nn.Parameter(torch.ones(4, 4)) for _ in range(2)])
        self.table = nn.ParameterDict({{"a": nn.Parameter(torch.ones(4, 4))}})
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.first = self.blocks[:1]

    def picked(self):
        return {other}

    def forward(self, x):
        for p in self.blocks:
            x = x @ p
        return {run}


model = FSDP(Net())
optimizer = torch.optim.SGD({given}, lr=0.1)
"""


def marked(run: str = "x", other: str = "2", given: str = "model.parameters()") -> int:
    result, _ = migrate({"train.py": SOURCE.format(run=run, other=other, given=given)})
    return sum("told by their class" in str(d.site.construct) for d in result.decisions)


@pytest.mark.parametrize(
    ("run", "other"),
    [
        ("x @ torch.cat(list(self.blocks[:2]))", "2"),
        ("x @ joined(self.blocks)", "2"),
        ("x @ self.picked()[0]", "self.blocks[1:]"),
        ("x @ nn.ParameterList([self.blocks[0]])[0]", "2"),
        ("x @ nn.ParameterDict({'a': self.table['a']})['a']", "2"),
        ("x @ self.table.copy()['a']", "2"),
        ("x @ sum(p for p in self.blocks if isinstance(p, nn.Parameter))", "2"),
        ("x if isinstance(self.blocks[0], (nn.Parameter, int)) else 2 * x", "2"),
    ],
)
def test_what_a_forward_tells_by_class_is_marked(run: str, other: str) -> None:
    assert marked(run, other) == 1


@pytest.mark.parametrize(
    ("run", "other"),
    [
        ("x @ torch.cat(list(self.blocks)[:2])", "self.blocks[1:]"),
        ("self.layers[:1][0](x)", "2"),
        ("x[:2] @ self.blocks[0][:, :2]", "2"),
        ("x if isinstance(x, nn.Parameter) else 2 * x", "2"),
        ("x if isinstance(self.blocks[0], torch.Tensor) else 2 * x", "2"),
    ],
)
def test_what_is_no_list_of_parameters_is_not(run: str, other: str) -> None:
    assert marked(run, other) == 0


def test_outside_of_a_forward_they_were_parameters() -> None:
    assert marked(given="model.module.blocks[:1]") == 0
