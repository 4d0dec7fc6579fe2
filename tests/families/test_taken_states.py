"""Optimizer states whose source changes between their conversion and their load."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def resume(net, path):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    saved = torch.load(path)
    loaded = FSDP.optim_state_dict_to_load(model, optimizer, saved["optimizer"])
    {between}
    optimizer.load_state_dict(loaded)
    {after}
"""


@pytest.mark.parametrize(
    "between",
    [
        'del saved["optimizer"]',
        "del saved",
        "saved = None",
        'saved["optimizer"] = {}',
        'saved.pop("optimizer")',
        "saved.clear()",
    ],
)
def test_a_state_is_read_before_its_source_changes(between: str) -> None:
    after = rewritten(PROGRAM.format(between=between, after="del loaded"))
    read = after.index('saved["optimizer"]')
    assert read < after.index(between)
    assert "optimizer.load_state_dict(loaded)\n    del loaded" in after


@pytest.mark.parametrize("between", ["print('loaded')", "del path", 'print(saved["step"])'])
def test_a_state_is_read_where_it_is_loaded(between: str) -> None:
    after = rewritten(PROGRAM.format(between=between, after='del saved["optimizer"]'))
    assert "set_optimizer_state_dict(" in after
    assert "loaded)" not in after
