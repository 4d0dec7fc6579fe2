"""What ``async`` functions give, and how it gets out of a loop of events."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

MAIN = """\
import asyncio
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


async def make(net):
    model = FSDP(net, use_orig_params=True)
    return model


async def other(net):
    return torch.nn.Linear(2, 2)


async def both(net):
    return net, await make(net)


async def each(net):
    yield other(net)


async def started(net):
    task = asyncio.create_task(make(net))
    return await task


async def gathered(net):
    first, model = await asyncio.gather(other(net), make(net))
    return model


async def left_out(net):
    first, model = await asyncio.gather(make(net), other(net))
    return model


def main(net, loop):
    MADE
    print(sum(p.std() for p in model.parameters()))
"""
MADE = {
    "run": "model = asyncio.run(make(net))",
    "a part": "_, model = asyncio.run(both(net))",
    "a task": "model = asyncio.run(started(net))",
    "gathered": "model = asyncio.run(gathered(net))",
    "in time": "model = asyncio.run(asyncio.wait_for(make(net), 3))",
}
NOT = {
    "another": "model = asyncio.run(other(net))",
    "the other part": "model, _ = asyncio.run(asyncio.wait_for(both(torch.nn.Linear(2, 2)), 3))",
    "what is gathered beside it": "model = asyncio.run(left_out(net))",
    "a generator": "model = next(each(net))",
}
MARKER = "# TODO(fsdp-migrate FSDP408)"


def after(made: str) -> str:
    return migrate({"main.py": MAIN.replace("MADE", made)})[1]["main.py"]


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_what_an_async_function_gives_is_followed(made: str) -> None:
    assert MARKER in after(made)


@pytest.mark.parametrize("made", NOT.values(), ids=NOT)
def test_what_gives_something_else_is_not(made: str) -> None:
    assert MARKER not in after(made)
