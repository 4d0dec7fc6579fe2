"""Where a state is asked for by some ranks alone, as its marker says it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(model, path):
    torch.save(model.state_dict(), path)


def main(net, paths):
    model = FSDP(net)
    rank = dist.get_rank()
    for path in paths:
{body}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("if rank == 0:\n    save(model, path)", "called under 'rank == 0'"),
        ("if rank != 0:\n    continue\nsave(model, path)", "called behind an exit of 'rank != 0'"),
        (
            "if rank != 0:\n    pass\nelse:\n    save(model, path)",
            "called in the else of 'rank != 0'",
        ),
    ],
)
def test_the_ranks_that_come_are_named(body: str, said: str) -> None:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    text = rewritten(PROGRAM.format(body=lines))
    assert said in " ".join(text.replace("#", " ").split())


def test_nothing_is_said_where_every_rank_comes() -> None:
    text = rewritten(PROGRAM.format(body="        save(model, path)"))
    assert "FSDP302" not in text
