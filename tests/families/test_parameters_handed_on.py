"""Parameters of a sharded model that reach other code in arguments, attributes and lists."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(nn.Linear(4, 4), use_orig_params=True)


"""
PLAIN = """\
import torch
import torch.distributed as dist
from torch import nn

model = nn.Linear(4, 4)


"""
LIST = "list(model.parameters())"
LEFT = {
    "a master under the parameter's own name": (
        "def swap(given):\n    for p in given:\n        p._master = p.data.float()\n"
        "        p.data = p._master\n\n\nswap([p for p in model.parameters()])\n"
    ),
    "a master under a name": (
        "def swap(given):\n    for p in given:\n        master = p.detach().float()\n"
        f"        p.data = master\n\n\nswap({LIST})\n"
    ),
    "a master under two names, of a list in an object": (
        "class Swap:\n    def __init__(self, given):\n        self.given = given\n\n"
        "    def run(self):\n        for p in self.given:\n            wide = p.data.double()\n"
        f"            new = wide\n            p.data = new\n\n\nSwap({LIST}).run()\n"
    ),
}
COUNTED = {
    "sizes that are added up": (
        "def count(given):\n    sizes = torch.tensor([p.numel() for p in given])\n"
        f"    dist.all_reduce(sizes)\n\n\ncount({LIST})\n"
    ),
    "a total that is added up": (
        "def count(given):\n    total = 0\n    for p in given:\n        total += p.numel()\n"
        f"    dist.all_reduce(torch.tensor(total))\n\n\ncount({LIST})\n"
    ),
}
REVIEWED = {
    "sizes that no rank adds up": (
        f"def count(given):\n    return max(p.numel() for p in given)\n\n\nprint(count({LIST}))\n"
    ),
    "sizes of what an object keeps": (
        "class Counter:\n    def __init__(self, given):\n        self.given = given\n\n"
        "    def count(self):\n        sizes = [p.numel() for p in self.given]\n"
        f"        dist.all_gather_object([], sizes)\n\n\nCounter({LIST}).count()\n"
    ),
    "flattened gradients under a name": (
        "def join(given):\n    flat = [p.grad.reshape(-1) for p in given]\n"
        f"    return torch.cat(flat)\n\n\njoin({LIST})\n"
    ),
    "flattened gradients that a loop adds": (
        "def join(given):\n    flat = []\n    for p in given:\n"
        "        flat.append(p.grad.detach().view(-1))\n"
        f"    return torch.cat(flat)\n\n\njoin({LIST})\n"
    ),
    "flattened gradients and something else": (
        "def join(given):\n    flat = [torch.zeros(1)]\n    for p in given:\n"
        "        flat.append(p.grad.view(-1))\n"
        f"    return torch.cat(flat)\n\n\njoin({LIST})\n"
    ),
}


@pytest.mark.parametrize("use", LEFT.values(), ids=LEFT)
def test_another_dtype_in_data_holds_the_model_back(use: str) -> None:
    result, after = migrate({"example.py": HEAD + use})
    assert "FSDP(nn.Linear" in after["example.py"]
    found = [d for d in result.decisions if d.code == "FSDP408"]
    assert [d.outcome for d in found] == [Outcome.LEFT]


@pytest.mark.parametrize("use", COUNTED.values(), ids=COUNTED)
def test_counts_that_are_added_up_are_those_of_parts(use: str) -> None:
    result, after = migrate({"example.py": HEAD + use})
    (found,) = (d for d in result.decisions if d.code == "FSDP408")
    assert found.outcome is Outcome.REVIEW  # the root may be whole there
    assert "own_part(p).numel()" in after["example.py"]


@pytest.mark.parametrize("use", REVIEWED.values(), ids=REVIEWED)
def test_counts_and_vectors_are_marked(use: str) -> None:
    result, after = migrate({"example.py": HEAD + use})
    assert "fully_shard(nn.Linear" in after["example.py"]
    found = [d for d in result.decisions if d.code == "FSDP408"]
    assert [d.outcome for d in found] == [Outcome.REVIEW]


def test_what_a_loop_adds_is_this_ranks_part() -> None:
    _, after = migrate({"example.py": HEAD + REVIEWED["flattened gradients that a loop adds"]})
    assert "flat.append(own_part(p.grad).detach().view(-1))" in after["example.py"]


@pytest.mark.parametrize("use", [*LEFT.values(), *REVIEWED.values()], ids=[*LEFT, *REVIEWED])
def test_parameters_of_a_plain_model_stay(use: str) -> None:
    other = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nFSDP(net)\n"
    _, after = migrate({"example.py": PLAIN + use, "sharded.py": other})
    assert after["example.py"] == PLAIN + use


OTHERS = {
    "the same dtype": (
        "def swap(given):\n    for p in given:\n        new = p.data * 0.5\n"
        f"        p.data = new\n\n\nswap({LIST})\n"
    ),
    "gradients that are not flattened": (
        "def join(given):\n    kept = [p.grad for p in given]\n"
        f"    return torch.stack(kept)\n\n\njoin({LIST})\n"
    ),
}


@pytest.mark.parametrize("use", OTHERS.values(), ids=OTHERS)
def test_what_goes_on_needs_no_review(use: str) -> None:
    result, after = migrate({"example.py": HEAD + use})
    assert "fully_shard(nn.Linear" in after["example.py"]
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)
