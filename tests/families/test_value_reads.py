"""Numbers that a program reads of the parameters of its sharded models."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.scale = nn.Parameter(torch.ones(2))


def main(batches, before, writer, other, counts):
    model = FSDP(Net(), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(x)
    READ
"""
OWN = (
    "total = sum(float(p.sum()) for p in model.parameters())",
    'print(f"{sum(p.norm().item() for p in model.parameters()):.4f}")',
    'logging.info("%s", {n: p.mean().item() for n, p in model.named_parameters()})',
    "dead = sum((p == 0).sum().item() for p in model.parameters())",
    "far = [(p - q).norm().item() for p, q in zip(model.parameters(), before)]",
    "assert max(p.abs().max().item() for p in model.parameters()) < 5",
    "print(next(model.parameters()).sum().item())",
    "print(list(model.parameters())[0].norm().item())",
    "first = next(model.parameters())\n    print(first.norm().item())",
    "print(model.head.weight.norm().item())",
    "print(float(model.scale.sum()))",
    "held = dict(model.named_parameters())\n    print(held['head.weight'].norm().item())",
    "held = {n: p for n, p in model.named_parameters()}\n    print(float(held['scale'].sum()))",
    "held = {n: p.clone() for n, p in model.named_parameters()}\n"
    "    print(max(held[n].abs().max().item() for n in held))",
    "held = list(model.parameters())\n    print(held[-1].mean().item())",
)
COMPUTED = (
    "assert all(torch.isfinite(p).all() for p in model.parameters())",
    "same = all(torch.allclose(p, q) for p, q in zip(model.parameters(), before))",
    "for i, (n, p) in enumerate(model.named_parameters()): print(i, n, p.flatten()[:3])",
    "norm = torch.nn.utils.get_total_norm(p.grad for p in model.parameters())",
    "tops = [torch.topk(p.flatten(), 3) for p in model.parameters()]",
    """if dist.get_rank() == 0: print(f"{model.get_parameter('head.bias').norm():.3f}")""",
    'print(dict(model.named_parameters())["scale"].sum())',
)
VALUES = (
    "arrays = [p.detach().cpu().numpy() for p in model.parameters()]",
    "lists = [p.tolist() for p in model.parameters()]",
    "for n, p in model.named_parameters(): writer.add_histogram(n, p, 0)",
    "print(model.scale.tolist())",
)
KEPT = (
    "print(sum(float(p.sum()) for p in other.parameters()))",  # of a plain model
    "print([x.sum().item() for p, x in zip(model.parameters(), batches)])",
    "print([n[0] for n, p in model.named_parameters()])",
    "print([p.dtype for p in model.parameters()], next(model.parameters()).device)",
    "print([p.sum().item() for p in batches], other.head.weight.sum().item())",
    "clean = not any(p.isnan().any().item() for p in model.parameters())",  # each rank its own
    "print([counts[p] for p in model.parameters()])",
    "held = dict(other.named_parameters())\n    print(held['head.weight'].norm().item())",
    "held = {n: batches[0] for n, p in model.named_parameters()}\n    print(held[0].sum())",
    "print(model[0].sum().item(), model[0].ndim)",  # a module that the model holds
    "held = list(batches)\n    print(held[0].norm().item(), [p.dtype for p in model.parameters()])",
)


def after(read: str) -> str:
    text = rewritten(PROGRAM.replace("READ", read))
    return " ".join(text[text.index("model(x)\n    ") :].replace("#", " ").split())


@pytest.mark.parametrize("read", OWN)
def test_a_number_of_this_ranks_part_is_marked(read: str) -> None:
    assert "this rank's part has other elements now" in after(read)


@pytest.mark.parametrize("read", COMPUTED)
def test_what_all_ranks_compute_is_marked(read: str) -> None:
    assert "for which all ranks must ask" in after(read)


@pytest.mark.parametrize("read", VALUES)
def test_lists_and_arrays_are_made_of_this_ranks_part(read: str) -> None:
    text = after(read)
    assert "own_part(" in text
    assert "part has other elements" in text


@pytest.mark.parametrize("read", KEPT)
def test_what_reads_no_values_of_a_sharded_model_is_not(read: str) -> None:
    assert "TODO" not in after(read)


def test_a_replicated_model_has_all_elements_on_every_rank() -> None:
    whole = PROGRAM.replace("use_orig_params=True", "sharding_strategy=ShardingStrategy.NO_SHARD")
    whole = whole.replace("as FSDP", "as FSDP, ShardingStrategy").replace("READ", OWN[0])
    text = rewritten(whole)
    assert "number of this rank" not in text[text.index("def main") :]


ADDED_UP = """total = torch.tensor(sum(p.norm().item() ** 2 for p in model.parameters()))
    dist.all_reduce(total)"""


def test_numbers_that_are_added_up_are_those_of_shards() -> None:
    text = after(ADDED_UP)
    assert "TODO" not in text
    assert "model.reshard() total =" in text


def test_means_are_marked_where_they_are_added_up() -> None:
    assert "this rank's part has other elements now" in after(ADDED_UP.replace("norm", "mean"))


@pytest.mark.parametrize(
    "read",
    [
        "same = all(torch.equal(p, q) for p, q in zip(model.parameters(), before))",
        "far = sum(((p - q) ** 2).sum() for p, q in zip(model.parameters(), before))",
    ],
)
def test_what_is_combined_is_sharded_alike(read: str) -> None:
    assert "model.reshard()" in after(read)


@pytest.mark.parametrize("read", [OWN[0], COMPUTED[2]])
def test_what_is_read_by_itself_is_not_resharded(read: str) -> None:
    assert "reshard()" not in after(read)


FORWARD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 2))
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x):
        return x @ self.weight[:2].T + self.bias[:2] * self.weight.norm()


class Trainer(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = FSDP(Net(), use_orig_params=True)

    def forward(self, x):
        return self.model(x) READ
"""


def test_a_forward_reads_whole_parameters_of_its_own_model() -> None:
    assert "TODO" not in rewritten(FORWARD.replace(" READ", ""))
    other = rewritten(FORWARD.replace("READ", "* self.model.weight.norm()"))
    assert other.count("TODO") == 1


BETWEEN = """\
import itertools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(batches, other):
    model = FSDP(nn.Linear(4, 4), use_orig_params=True)
    other = FSDP(nn.Linear(4, 4), use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        loss = model(x).sum()
        BEFORE
        loss.backward()
        AFTER
        optimizer.step()
"""
SQUARES = (
    "squares = sum(p.detach().pow(2).sum() for p in GIVEN.parameters()); dist.all_reduce(squares)"
)


@pytest.mark.parametrize(
    ("place", "given", "resharded"),
    [("BEFORE", "model", True), ("AFTER", "model", False), ("BEFORE", "other", False)],
)
def test_numbers_between_a_forward_and_its_backward(
    place: str, given: str, resharded: bool
) -> None:
    source = BETWEEN.replace(place, SQUARES.replace("GIVEN", given))
    text = rewritten(source.replace("BEFORE", "pass").replace("AFTER", "pass"))
    assert "own_part(p)" in text
    assert ("        model.reshard()\n        squares = " in text) is resharded


def test_of_gradients_there_nothing_is_said() -> None:
    squares = SQUARES.replace("p.detach()", "p.grad").replace("GIVEN", "model")
    text = rewritten(BETWEEN.replace("BEFORE", squares).replace("AFTER", "pass"))
    assert "reshard" not in text
    assert "TODO" not in text


@pytest.mark.parametrize("chain", ["itertools.chain", "chain"])
def test_numbers_of_two_models_in_one_chain(chain: str) -> None:
    of_both = f"{chain}(model.parameters(), other.parameters())"
    squares = SQUARES.replace("GIVEN.parameters()", of_both)
    text = rewritten(
        BETWEEN.replace("import itertools", "import itertools\nfrom itertools import chain")
        .replace("BEFORE", "pass")
        .replace("AFTER", squares)
    )
    assert text.count("own_part(p).detach()") == 1


def test_what_another_chain_gives_is_its_own() -> None:
    squares = SQUARES.replace("GIVEN.parameters()", "query.chain(model.parameters())")
    text = rewritten(BETWEEN.replace("BEFORE", "pass").replace("AFTER", squares))
    assert "own_part" not in text
