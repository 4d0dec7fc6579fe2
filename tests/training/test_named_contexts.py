"""Micro-batches whose context has a name before it is entered: ``set_requires_gradient_sync``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import rewritten
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    model = FSDP(net, STRATEGYdevice_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        for number in range(3):
            inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank() + number
            BODY
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
"""
METHOD = """\
context = model.no_sync if number < 2 else nullcontext
with context():
    loss = model(inputs).pow(2).mean()
    loss.backward()
print("loss", loss.item())"""
CALLED = METHOD.replace("no_sync if", "no_sync() if").replace(
    "else nullcontext", "else nullcontext()"
)
CALLED = CALLED.replace("with context()", "with context")
TURNED = METHOD.replace(
    "model.no_sync if number < 2 else nullcontext", "nullcontext if number == 2 else model.no_sync"
)
DEEPER = METHOD.replace(
    "with context():\n", "for part in inputs.split(1):\n    with context():\n"
).replace(
    "    loss = model(inputs).pow(2).mean()\n    loss",
    "        loss = model(part).pow(2).mean()\n        loss",
)


def program(body: str, strategy: str = "") -> str:
    indented = body.replace("\n", "\n            ")
    return PROGRAM.replace("BODY", indented).replace("STRATEGY", strategy)


@pytest.mark.train
@pytest.mark.parametrize("body", [METHOD, DEEPER])
def test_it_trains_the_same(launcher: Launcher, tmp_path: Path, body: str) -> None:
    both = written({"train.py": program(body).encode()}, tmp_path)
    assert "model.set_requires_gradient_sync(number >= 2)" in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 18


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        (METHOD, "number >= 2"),
        (CALLED, "number >= 2"),
        (TURNED, "number == 2"),
        (DEEPER, "number >= 2"),
    ],
)
@pytest.mark.parametrize("strategy", ["", "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, "])
def test_the_name_and_the_context_go(body: str, condition: str, strategy: str) -> None:
    after = rewritten(program(body, strategy))
    flag = "is_last" if strategy else condition
    assert f"model.set_requires_gradient_sync({flag})" in after
    assert condition in after
    assert ("model.set_reshard_after_backward(is_last)" in after) is bool(strategy)
    assert "context" not in after


@pytest.mark.parametrize(
    "body",
    [
        METHOD.replace("print(", "print(context, "),  # the name is read once more
        METHOD.replace("with context():", "context = nullcontext\nwith context():"),
        METHOD.replace("with context():", "with context() as entered:"),
        METHOD.replace("with context():", "with context(), torch.enable_grad():"),
        METHOD.replace("context = ", "if number:\n    context = ").replace(
            "with ", "else:\n    context = nullcontext\nwith "
        ),
        METHOD.replace("context = ", "context = other = "),
        METHOD.replace("    loss.backward()\n", "").replace("print(", "loss.backward()\nprint("),
        METHOD.replace("else nullcontext", "else torch.no_grad"),
        METHOD.replace(
            "with context():",
            "try:\n    pass\nfinally:\n    pass\nwith context() if step else nullcontext():",
        ),
    ],
)
def test_the_context_stays_where_it_is_not_all_that_decides(body: str) -> None:
    after = rewritten(program(body))
    assert "partial(no_sync, model)" in after
