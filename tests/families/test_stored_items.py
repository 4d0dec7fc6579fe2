"""Parameters of an optimizer that an object keeps in a dictionary, and what is done with them."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def average(tensor, count=1):
    return dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)


def average_anew(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def note(tensor):
    print(tensor.shape)


class Adapter:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.groups = EMPTY
        self.others = {}
        for index, group in enumerate(self.optimizer.param_groups):
            STORE
            self.others[index] = [torch.zeros(3)]

    def step(self):
        LOOP
                USE
        self.optimizer.step()


class Other:
    def __init__(self, tensors):
        self.groups = {}
        self.groups[0] = [torch.zeros(3)]

    def step(self):
        for p in self.groups[0]:
            p.data = p.data.cpu()


def main(net):
    model = FSDP(net, use_orig_params=True)
    adapter = Adapter(torch.optim.AdamW(model.parameters()))
    Other([]).step()
    adapter.step()
"""
STORES = [
    'self.groups[index] = group["params"]',
    'kept = group["params"]\n            self.groups[index] = kept',
    'self.groups[index] = list(group["params"])',
]
LOOPS = [
    "for index in range(2):\n            for p in self.groups[index]:",
    "for index in range(2):\n            kept = self.groups[index]\n            for p in kept:",
    "for kept in range(1):\n            for p in self.groups[kept]:",
]


def sites(store: str, loop: str, use: str, empty: str = "{}") -> tuple[list[str], str]:
    source = PROGRAM.replace("STORE", store).replace("LOOP", loop).replace("USE", use)
    result, after = migrate({"example.py": source.replace("EMPTY", empty)})
    assert not result.problems
    found = [d.outcome.value for d in result.decisions if d.code == "FSDP408"]
    return found, after["example.py"]


@pytest.mark.parametrize("empty", ["{}", "dict()"])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_stored_is_handled_as_parameters(store: str, loop: str, empty: str) -> None:
    found, _ = sites(store, loop, "p.data = p.data.cpu()", empty)
    assert found == ["left"]


@pytest.mark.parametrize(
    ("use", "new"),
    [
        ("dist.all_reduce(p.grad)", "dist.all_reduce(own_part(p.grad))"),
        ("average(p.grad).wait()", "all_reduce(own_part(tensor)"),
        ("work = average(tensor=p.grad)", "all_reduce(own_part(tensor)"),
    ],
)
def test_gradients_that_functions_hand_to_collectives(use: str, new: str) -> None:
    found, after = sites(STORES[0], LOOPS[0], use)
    assert found == ["review"]
    assert new in after


@pytest.mark.parametrize(
    "use",
    ["note(p.grad)", "average(torch.ones(3))", "p.grad = average_anew(p.grad)", "average(p, p)"],
)
def test_other_functions_are_given_what_they_were(use: str) -> None:
    _, after = sites(STORES[0], LOOPS[0], use)
    assert use in after


@pytest.mark.parametrize("loop", [x.replace("groups", "others") for x in LOOPS])
def test_other_items_are_none(loop: str) -> None:
    found, after = sites(STORES[0], loop, "p.data = p.data.cpu()")
    assert not found
    assert after.count("p.data = p.data.cpu()") == 2
