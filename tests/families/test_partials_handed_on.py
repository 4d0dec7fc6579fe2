"""A partial of FSDP1 that nothing in sight calls by itself."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import functools
import torch
from concurrent.futures import ThreadPoolExecutor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from elsewhere import apply


class Strategy:
    def prepare(self, net):
        return net


def main(first, second, strategies, pool):
    wrap = functools.partial(FSDP, use_orig_params=True)
    HANDED
    prepared = strategies["plain"].prepare(first)
    print(sum(p.numel() for p in prepared.parameters()))
"""
HANDED = {
    "map": "models = list(map(wrap, (first, second)))",
    "a pool": "models = list(pool.map(wrap, [first, second]))",
    "a function out of sight": "models = [apply(wrap, first), apply(wrap, second)]",
    "a list": "models = [each(first) for each in (wrap, torch.nn.Identity)]",
    "nothing": "print(wrap)",
}


@pytest.mark.parametrize("handed", HANDED.values(), ids=HANDED)
def test_it_is_decided_beside_models_that_nobody_knows(handed: str) -> None:
    """What it wraps was asked for, of which it has none, and that stopped the tool."""
    result, _ = migrate({"train.py": PROGRAM.replace("HANDED", handed)})
    assert not result.problems
    assert any(d.code in {"FSDP101", "FSDP190"} for d in result.decisions)
