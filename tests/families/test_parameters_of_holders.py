"""Parameters of modules that are not sharded themselves and have parts that are."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate, rewritten

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.generator(x) * self.scale


def train(batches, wrap):
    both = Both()
    BEFORE
    both.generator = FSDP(both.generator, use_orig_params=True)
    for batch in batches:
        both(batch).sum().backward()
        ASK
"""


def program(ask: str, before: str = "pass") -> str:
    return rewritten(PROGRAM.replace("ASK", ask).replace("BEFORE", before))


@pytest.mark.parametrize(
    ("ask", "new"),
    [
        ("torch.nn.utils.clip_grad_norm_(both.parameters(), 1.0)", "clip_grad_norm_(both, 1.0)"),
        (
            "for p in both.parameters():\n            p.data = p.data * 2",
            "p.data.copy_(p.data * 2)",
        ),
        (
            "total = sum(p.grad.norm() ** 2 for p in both.parameters())\n"
            "        dist.all_reduce(total)",
            "own_part(p.grad).norm()",
        ),
        ("print(sum(p.numel() for p in both.parameters()))", "FSDP1 counted this rank's part"),
        (
            'print([n for n, p in both.named_parameters() if "fsdp" in n])',
            "FSDP1's names had _fsdp_wrapped_module",
        ),
        (
            "flat = torch.nn.utils.parameters_to_vector(both.parameters())",
            "parameters_to_vector(map(own_part, both.parameters()))",
        ),
    ],
)
def test_they_are_handled_like_a_models(ask: str, new: str) -> None:
    assert new in program(ask)


@pytest.mark.parametrize(
    "ask",
    [
        "print(sum(p.numel() for p in both.parameters()))",
        "for p in both.parameters():\n        p.data = p.data * 2",
    ],
)
def test_before_a_part_is_sharded_they_are_plain(ask: str) -> None:
    assert ask in program("pass", ask)


def test_of_a_module_without_such_parts_they_are_plain() -> None:
    made = "plain = nn.Sequential(nn.Linear(2, 2))"
    ask = f"{made}\n        print(sum(p.numel() for p in plain.parameters()))"
    after = program(ask)
    assert ask in after
    assert "TODO" not in after


def test_what_a_loop_counts_is_told_although_it_asks_for_names() -> None:
    ask = (
        "numel = 0\n"
        "        for name, p in both.generator.named_parameters():\n"
        "            if name.endswith('bias'):\n"
        "                continue\n"
        "            numel += p.numel()"
    )
    assert "FSDP1 counted this rank's part" in program(ask)


HIDDEN = """\
import collections
import elsewhere
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

Hidden = collections.namedtuple("Hidden", ["it", "other"])


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(3))


def main():
    both = Both()
    both.net = FSDP(both.net)
    plain = nn.Linear(4, 4)
    for p in WAY.parameters():
        p.data = p.data - 0.1 * p.grad
"""


@pytest.mark.parametrize(
    "way",
    ["Hidden({}, 0).it", "max([{}], key=id)", "elsewhere.passed({})", "elsewhere.Holder({}).net"],
)
@pytest.mark.parametrize(("what", "is_said"), [("both", True), ("plain", False)])
def test_what_a_hidden_one_is_asked_for_is_said(way: str, what: str, is_said: bool) -> None:
    result, _ = migrate({"a.py": HIDDEN.replace("WAY", way.format(what))})
    marked = any(d.site.position[0] in (22, 23) for d in result.decisions)
    assert (bool(result.not_followed) or marked) is is_said
