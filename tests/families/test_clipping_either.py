"""torch's own clipping of a model that is sharded only sometimes."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
from typing import cast

from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.utils import clip_grad_norm_


def step(model):
    clip_grad_norm_(model.parameters(), 0.05)


"""
SHARDED = {
    "always": "step(FSDP(nn.Linear(2, 2)))\n",
    "sometimes": "step(FSDP(nn.Linear(2, 2)) if many else nn.Linear(2, 2))\n",
    "by two callers": "step(FSDP(nn.Linear(2, 2)))\nstep(nn.Linear(2, 2))\n",
    "behind a cast": "step(cast(nn.Module, FSDP(nn.Linear(2, 2))))\n",
}


@pytest.mark.parametrize("call", SHARDED.values(), ids=SHARDED)
def test_what_differs_is_said(call: str) -> None:
    _, after = migrate({"train.py": HEAD + call})
    assert after["train.py"].count("# TODO(fsdp-migrate FSDP401)") == 1
    assert "clip_grad_norm_(model.parameters(), 0.05)" in after["train.py"]


def test_a_model_that_is_never_sharded_is_left() -> None:
    source = HEAD + "step(nn.Linear(2, 2))\nother = FSDP(nn.Linear(2, 2))\n"
    _, after = migrate({"train.py": source})
    assert "TODO" not in after["train.py"]


def test_the_inner_module_behind_a_cast_is_the_model() -> None:
    source = HEAD + "net = cast(nn.Module, FSDP(nn.Linear(2, 2)))\nforward = net.module.forward\n"
    _, after = migrate({"train.py": source})
    assert "forward = net.forward\n" in after["train.py"]
