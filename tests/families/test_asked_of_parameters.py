"""What is asked of one parameter, of a list of them, and of what a function is given."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.nn.parallel import DistributedDataParallel


class Average:
    def __init__(self, model):
        self.kept = {n: p.detach().clone() for n, p in model.named_parameters()}

    def state_dict(self):
        return {"decay": 0.9, "kept": self.kept}


def size(p):
    return p.numel()


def told(p):
    return p.shape, p.std(), p.data_ptr()


def drawn(p):
    p.grad.add_(torch.randn_like(p.grad))


def whole(p):
    return p.full_tensor().numel() if isinstance(p, DTensor) else p.numel()


def main(net, path, kind):
    model = MODEL
    net.head = nn.Linear(2, 2)
"""
SHARDED, PLAIN = "FSDP(net, use_orig_params=True)", "DistributedDataParallel(net)"
COUNT, SHAPE, STATISTIC = "numel() is that of", "ndim and shape are those", "all ranks must ask"
MEMORY, ADDRESS, DRAWN = "those of p.to_local()", "tell parameters apart", "others than FSDP1's"
ONE = {
    "deviation": ("print(next(model.parameters()).std())", {STATISTIC}),
    "deviation by torch": ("print(torch.std(model.head.weight))", {STATISTIC}),
    "median of a gradient": ("print(model.head.weight.grad.median())", {STATISTIC}),
    "elements": ("print(model.head.bias.numel())", {COUNT}),
    "elements of a name": ("w = model.head.weight\nprint(w.detach().numel())", {COUNT}),
    "elements of its shape": ("print(list(model.parameters())[0].shape.numel())", {COUNT}),
    "shape": ("print(model.get_parameter('head.weight').shape)", {SHAPE}),
    "size, twice": ("w = model.head.weight\nprint(w.size(0), w.size(1))", {SHAPE}),
    "address": ("print(next(model.parameters()).data_ptr())", {ADDRESS}),
    "bytes": ("print(model.head.weight.nbytes)", {MEMORY}),
    "noise": ("model.head.weight.grad.add_(torch.randn_like(model.head.weight.grad))", {DRAWN}),
}
OF_LISTS = {
    "a list": ("params = list(model.parameters())\nprint(sum(p.numel() for p in params))", {COUNT}),
    "a filtered one": (
        "params = [p for p in model.parameters() if p.requires_grad]\n"
        "total = 0\nfor p in params:\n    total += p.numel()",
        {COUNT},
    ),
    "noise": (
        "params = list(model.parameters())\nfor p in params:\n    drawn(p)",
        {DRAWN},
    ),
    "noise in a loop": (
        "for p in model.parameters():\n    p.grad.add_(0.1 * torch.randn_like(p.grad))",
        {DRAWN},
    ),
    "numbers in place": ("for p in model.parameters():\n    p.grad.normal_(0, 0.1)", {DRAWN}),
}
GIVEN = {
    "elements": ("print([size(p) for p in model.parameters()])", {COUNT}),
    "elements of one": ("print(size(next(model.parameters())))", {COUNT}),
    "what a function is told": (
        "for p in model.parameters():\n    print(told(p))",
        {SHAPE, STATISTIC, ADDRESS},
    ),
    "saved averages": ("torch.save(Average(model).state_dict(), path)", {"are read back as such"}),
    "saved averages in a dictionary": (
        'average = Average(model)\nsaved = {"ema": average.state_dict(), "step": 1}\n'
        "torch.save(saved, path)",
        {"are read back as such"},
    ),
}
ALL = {
    f"{k} of {n}": v
    for k, m in (("one", ONE), ("a list", OF_LISTS), ("a function", GIVEN))
    for n, v in m.items()
}
NEITHER = {
    "the type": "print(model.head.weight.dtype, next(model.parameters()).device)",
    "a whole one": "print(model.head.weight.full_tensor().std())",
    "a function that tells them apart": "print([whole(p) for p in model.parameters()])",
    "a local copy": "w = model.head.weight.to_local()\nprint(w.numel(), w.shape, w.std())",
    "something else's": "print(torch.nn.Linear(2, 2).weight.shape, size(torch.ones(2)))",
    "whole parameters": (
        "with FSDP.summon_full_params(model):\n    print(model.head.weight.numel())\n"
        "    print([size(p) for p in model.parameters()])"
    ),
    "numbers of another tensor": "print(torch.randn_like(torch.ones(2)).std())",
    "a plain state": "torch.save({'decay': Average.__name__}, path)",
}


def found(use: str, model: str = SHARDED) -> tuple[list[tuple[Outcome, str]], str]:
    body = "".join(f"    {line}\n" for line in use.split("\n"))
    result, after = migrate({"train.py": HEAD.replace("MODEL", model) + body})
    decisions = [(d.outcome, d.help) for d in result.decisions if d.code == "FSDP408"]
    return decisions, after["train.py"]


@pytest.mark.parametrize(("use", "said"), ALL.values(), ids=ALL)
def test_what_is_another_number_is_marked(use: str, said: set[str]) -> None:
    decisions, _ = found(use)
    marked = [why for outcome, why in decisions if outcome is Outcome.REVIEW]
    assert len(marked) == len(said)
    for each in said:
        assert any(each in why for why in marked)


@pytest.mark.parametrize(("use", "said"), ALL.values(), ids=ALL)
def test_of_a_plain_model_it_is_not(use: str, said: set[str]) -> None:
    assert found(use, PLAIN)[0] == []


@pytest.mark.parametrize("use", NEITHER.values(), ids=NEITHER)
def test_what_is_the_same_is_not(use: str) -> None:
    assert found(use)[0] == []


def test_of_the_other_of_two_models_it_is_not() -> None:
    model = f'{SHARDED} if kind == "fsdp" else {PLAIN}'
    use = 'if kind != "fsdp":\n    print(size(next(model.parameters())))'
    assert found(use, model)[0] == []
