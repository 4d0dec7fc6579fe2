"""Copies of sharded parameters, which a program keeps by itself, are ``DTensor``s as they are."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

HEAD = """\
import copy

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Average:
    def __init__(self, model, rates):
        self.model = model
        self.shadow = {}
        for name, p in model.named_parameters():
            self.shadow[name] = p.data.clone()
        self.params = list(model.parameters())
        self.lists = [copy.deepcopy(self.params) for _ in rates]
        self.squares = [torch.zeros_like(p) for p in model.parameters()]
        self.masks = {name: (p.data.abs() > 0.1).float() for name, p in model.named_parameters()}
        self.names = ["model." + name for name, _ in model.named_parameters()]
        self.others = {}
        for name, buffer in model.named_buffers():
            self.others[name] = buffer.clone()

"""
MAIN = """

def train(net, rates):
    model = FSDP(net, use_orig_params=True)
    return Average(model, rates)
"""


def program(method: str) -> str:
    lines = method.strip().splitlines()
    body = "".join(f"        {line}\n" if line else "\n" for line in lines)
    return f"{HEAD}    def use(self, rate, plain):\n{body}{MAIN}"


ASSIGNED = {
    "in a loop over the model": (
        "for name, p in self.model.named_parameters():\n"
        "    self.shadow[name].data = (1 - rate) * p.data + rate * self.shadow[name].data",
        "self.shadow[name].data.copy_((1 - rate) * p.data + rate * self.shadow[name].data)",
    ),
    "in a loop over names": (
        "for name in self.shadow:\n    self.shadow[name].data = self.shadow[name].data * rate",
        "self.shadow[name].data.copy_(self.shadow[name].data * rate)",
    ),
    "one of a list": (
        "self.squares[0].data = self.squares[0].data * rate",
        "self.squares[0].data.copy_(self.squares[0].data * rate)",
    ),
    "one of a list in a list": (
        "self.lists[0][1].data = self.lists[0][1].data * rate",
        "self.lists[0][1].data.copy_(self.lists[0][1].data * rate)",
    ),
}


@pytest.mark.parametrize("kind", ASSIGNED)
def test_what_is_assigned_to_the_data_of_a_copy_is_copied(kind: str) -> None:
    """Nothing comes of the assignment to a ``DTensor``: the average stays what it was."""
    before, after = ASSIGNED[kind]
    assert after in rewritten(program(before))


@pytest.mark.parametrize(
    "before",
    [
        "for name in self.others:\n    self.others[name].data = self.others[name].data * rate",
        "self.others['x'].data = plain",
        "plain[0].data = plain[1].data * rate",
        "for name, p in plain.named_parameters():\n    p.data = p.data * rate",
    ],
)
def test_the_data_of_other_tensors_stay(before: str) -> None:
    assert before.splitlines()[-1].strip() in rewritten(program(before)).replace('"', "'")


TOTALS = {
    "of differences": (
        "t = sum(((self.shadow[n] - p.data) ** 2).sum() for n, p in self.model.named_parameters())",
        "own_part((self.shadow[n] - p.data))",
    ),
    "of differences, the other way round": (
        "t = sum((p - self.shadow[n]).abs().sum() for n, p in self.model.named_parameters())",
        "own_part((p - self.shadow[n]))",
    ),
    "scaled from the left": (
        "t = sum((2 * p.grad).square().sum() for p in self.model.parameters())",
        "2 * p.grad.to_local()",
    ),
    "scaled by a variable": (
        "t = sum((rate * p.grad).square().sum() for p in self.model.parameters())",
        "own_part((rate * p.grad))",
    ),
    "of a copied list": ("t = sum((p**2).sum() for p in self.lists[0])", "own_part(p)"),
    "of lists in a list": (
        "t = 0\nfor params in self.lists:\n    for p in params:\n        t = t + p.pow(2).sum()",
        "own_part(p)",
    ),
    "of what is like parameters": ("t = sum(s.sum() for s in self.squares)", "own_part(s)"),
    "of comparisons": (
        "t = sum((p.abs() > rate).sum() for p in self.model.parameters())",
        "own_part(p.abs() > rate)",
    ),
}


@pytest.mark.parametrize("kind", TOTALS)
def test_totals_of_copies_that_ranks_add_up_are_of_this_ranks_part(kind: str) -> None:
    before, after = TOTALS[kind]
    after = "".join(after.split()).replace("((", "(").replace("))", ")")
    found = rewritten(program(f"{before}\ndist.all_reduce(t)"))
    assert after in "".join(found.split()).replace("((", "(").replace("))", ")")


@pytest.mark.parametrize(
    "total",
    [
        "t = sum(((self.others[n] - b) ** 2).sum() for n, b in self.model.named_buffers())",
        "t = sum((p - q).abs().sum() for p, q in zip(plain, plain))",
        "t = sum(b.sum() for b in self.others.values())",
        "t = torch.tensor(sum(p.grad is None for p in self.model.parameters()))",
        "t = torch.tensor(sum(len('model.' + n) for n, _ in self.model.named_parameters()))",
        "t = torch.tensor(sum(n == plain for n, _ in self.model.named_parameters()))",
        "t = torch.tensor(len(self.names))",
    ],
)
def test_totals_of_other_tensors_stay(total: str) -> None:
    found = rewritten(program(f"{total}\ndist.all_reduce(t)")).replace('"', "'")
    assert total.replace('"', "'") in found
    assert "own_part" not in found


@pytest.mark.parametrize(
    "written",
    [
        "self.shadow",
        "self.squares",
        "self.masks",
        "{'mean': self.shadow}",
        "[torch.zeros_like(p) for p in self.model.parameters()]",
    ],
)
def test_copies_that_are_written_to_a_file_are_marked(written: str) -> None:
    assert "flat pieces" in rewritten(program(f"torch.save({written}, 'f')"))


@pytest.mark.parametrize(
    "written",
    [
        "self.others",
        "self.names",
        "[rate + n for n, _ in self.model.named_parameters()]",
        "['m.' + n for n, _ in self.model.named_parameters()]",
        "[torch.zeros_like(b) for b in plain]",
        "[p.grad is None for p in self.model.parameters()]",
        "rate",
    ],
)
def test_other_files_are_not_marked(written: str) -> None:
    assert "flat pieces" not in rewritten(program(f"torch.save({written}, 'f')"))


FLAT = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Step(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @property
    def trained(self):
        return [p for g in self.param_groups for p in g["params"] if p.grad is not None]

    def use(self, model, kept, plain):
        copies = [p.clone() for p in model.parameters()]
        listed = list(model.parameters())
        LOOP


def train(net, kept, plain):
    model = FSDP(net, SETTINGS)
    Step(model.parameters()).use(model, kept, plain)
"""
LOST = {
    "of the model": "for p in model.parameters():\n            p.data = p.data * 2",
    "by name": "for n, p in model.named_parameters():\n            p.data = kept[n]",
    "zipped": "for p, q in zip(model.parameters(), copies):\n            p.data = q",
    "of the groups": (
        'for g in self.param_groups:\n            for p in g["params"]:\n'
        "                p.data = p.data - p.grad"
    ),
    "of a property": "for p in self.trained:\n            p.data = kept[p]",
    "of a list": "for p in listed:\n            p.data = p.data * 2",
}
KEPT = {
    "copies": "for p in copies:\n            p.data = p.data * 2",
    "zipped copies": (
        "for q, p in zip(copies, model.parameters()):\n            q.data = p.data * 2"
    ),
    "gradients": "for p in model.parameters():\n            p.grad.data = p.grad.data * 2",
    "others": "for p in plain.parameters():\n            p.data = p.data * 2",
    "in place": "for p in model.parameters():\n            p.data.mul_(2)",
}


def flat(loop: str, settings: str = "None") -> str:
    return " ".join(
        rewritten(FLAT.replace("LOOP", loop).replace("SETTINGS", settings))
        .replace("#", " ")
        .split()
    )


@pytest.mark.parametrize("loop", LOST.values(), ids=LOST)
def test_what_fsdp1_lost_of_flat_parameters_is_marked(loop: str) -> None:
    assert "up to the next backward" in flat(loop)


@pytest.mark.parametrize("loop", KEPT.values(), ids=KEPT)
def test_what_fsdp1_did_not_lose_is_not(loop: str) -> None:
    assert "up to the next backward" not in flat(loop)


@pytest.mark.parametrize(
    "settings", ["use_orig_params=True", "sharding_strategy=ShardingStrategy.NO_SHARD"]
)
def test_parameters_of_their_own_and_whole_ones_are_not_lost(settings: str) -> None:
    text = FLAT.replace("LOOP", LOST["of the model"]).replace("SETTINGS", settings)
    text = text.replace("Parallel as FSDP", "Parallel as FSDP, ShardingStrategy")
    assert "up to the next backward" not in " ".join(rewritten(text).replace("#", " ").split())


LION = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def step(model, beta, averages):
    likeness = torch.zeros(1)
    norms, signs = [], []
    for name, p in model.named_parameters():
        update = averages[name] * beta + p.grad * (1 - beta)
        sign = torch.sign(update)
        likeness += torch.tensordot(update, sign, dims=len(update.shape))
        likeness += PRODUCT
        norms.append(torch.linalg.vector_norm(update, 2.0, dtype=torch.float32))
        signs.append(torch.linalg.vector_norm(sign, 2.0, dtype=torch.float32))
    dist.all_reduce(likeness)
    for norm in (norms, signs):
        total = torch.linalg.vector_norm(torch.stack(norm), 2.0) ** 2
        dist.all_reduce(total)


def train(net, averages):
    model = FSDP(net, use_orig_params=True)
    step(model, 0.9, averages)
"""


def test_products_and_signs_are_of_the_same_part_as_norms() -> None:
    """Where a norm is this rank's, so is what is compared with it."""
    after = rewritten(LION.replace("PRODUCT", "update.view(-1).dot(sign.view(-1))"))
    assert "torch.tensordot(own_part(update), own_part(sign), dims=len(update.shape))" in after
    assert "own_part(update.view(-1)).dot(own_part(sign.view(-1)))" in after or (
        "own_part(update).view(-1).dot(own_part(sign).view(-1))" in after
    )
    assert "vector_norm(own_part(update), 2.0" in after
    assert "vector_norm(own_part(sign), 2.0" in after


@pytest.mark.parametrize(
    "product",
    [
        "torch.tensordot(update, sign, dims=1).sum()",  # of rows
        "torch.tensordot(update, likeness, dims=len(update.shape))",
        "averages.dot(likeness)",
    ],
)
def test_a_product_of_rows_or_of_something_else_stays(product: str) -> None:
    assert product in rewritten(LION.replace("PRODUCT", product))
