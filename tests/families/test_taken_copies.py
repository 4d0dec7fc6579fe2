"""Parameters that are copied, handed on to be changed, or swapped for their averages."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import copy
import torch
from elsewhere import Average
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def keep(params):
    return [p.detach().clone() for p in params]


def put(params, kept):
    for p, k in zip(params, kept):
        p.data.copy_(k)


def show(params):
    print([p.shape for p in params])


class Kept:
    def store(self, parameters):
        self.kept = keep(parameters)

    def restore(self, parameters):
        put(parameters, self.kept)


@torch.no_grad()
def evaluate(model, batch):
    return model(batch)


def train(net, batches):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    average, kept, own = Average(model.parameters()), [], Kept()
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()
        EVALUATE
        STATEMENT
"""
RESHARDED = "        model.reshard()\n"
LATE = "FSDP1's forwards did not see"


def after(statement: str, evaluate: str = "evaluate(model, batch)") -> str:
    source = PROGRAM.replace("EVALUATE", evaluate).replace("STATEMENT", statement)
    _, _, loop = rewritten(source).partition("for batch in batches:")
    return loop


COPIED = [
    "kept = [p.detach().clone() for p in model.parameters()]",
    "kept = {n: p.cpu() for n, p in model.named_parameters()}",
    "kept = copy.deepcopy(list(model.parameters()))",
    "kept = keep(model.parameters())",
    "own.store(model.parameters())",
    "average.store(model.parameters())",
    "average.store(parameters=list(model.parameters()))",
    "for p in model.parameters():\n            kept.append(p.data.clone())",
]
CHANGED = [
    "put(model.parameters(), kept)",
    "own.restore(model.parameters())",
    "average.restore(model.parameters())",
    "average.copy_to(list(model.parameters()))",
    "for k, p in zip(kept, model.parameters()):\n            p.data.copy_(k)",
    "for p in model.parameters():\n            p.data = kept.pop(0)",
]


@pytest.mark.parametrize("statement", COPIED)
def test_copies_are_taken_of_shards(statement: str) -> None:
    found = after(statement)
    assert RESHARDED in found
    assert LATE not in found


@pytest.mark.parametrize("statement", CHANGED)
def test_what_fsdp1_saw_late_is_marked(statement: str) -> None:
    """Measured on two ranks: FSDP1 trains otherwise with averages that were taken out again."""
    found = after(statement)
    assert RESHARDED in found
    assert LATE in found


def test_it_is_done_and_said_once_where_nothing_runs_in_between() -> None:
    """``store`` and ``copy_to`` in a row, and ``restore`` behind an evaluation."""
    lines = ["own.store(model.parameters())", "own.restore(model.parameters())"]
    behind = "evaluate(model, batch)\n        own.restore(model.parameters())"
    row = "\n        ".join(lines)
    assert after(row).count(RESHARDED) == 1
    assert after(f"{row}\n        {behind}").count(RESHARDED) == 2
    assert after(f"{row}\n        {behind}").count(LATE) == 1


@pytest.mark.parametrize("average", ["k.lerp_(p, 0.1)", "k.sub_(0.1 * (k - p))"])
def test_what_is_written_to_is_not_what_stands_beside_it(average: str) -> None:
    """FSDP1 could not do this either where parameters were whole: they had other shapes."""
    loop = f"for k, p in zip(kept, model.parameters()):\n            {average}"
    assert LATE not in after(f"average.update(lambda params: params)\n        {loop}")


@pytest.mark.parametrize("statement", [*COPIED, *CHANGED])
def test_after_a_step_parameters_are_sharded(statement: str) -> None:
    assert LATE not in after(statement, "pass")


@pytest.mark.parametrize("statement", COPIED)
def test_copies_after_a_step_are_left_alone(statement: str) -> None:
    assert "reshard" not in after(statement, "print(len(batch))")


@pytest.mark.parametrize(
    "statement",
    [
        "show(model.parameters())",
        "print([p.shape for p in model.parameters()])",
        "average.show(model.parameters())",
        "kept = [k.clone() for k in kept]",
        "own.store(kept)",
        "other = Average(model.parameters())",
    ],
)
def test_other_code_is_left_alone(statement: str) -> None:
    assert "reshard" not in after(statement)
