"""A function that imports FSDP1 for itself goes on so, unless the head of the file does as well."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
HEAD


def wrap(net, blocks):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FSDP(net, auto_wrap_policy=ModuleWrapPolicy(blocks), sync_module_states=True)


def save(net, blocks):
    model = wrap(net, blocks)
    torch.save(model.state_dict(), "model.pt")
"""
CERTAIN = (
    "from torch.distributed.fsdp import ShardingStrategy\n\nUSED = ShardingStrategy.FULL_SHARD"
)
UNSURE = {
    "nothing": "",
    "a try": (
        "try:\n    from torch.distributed.fsdp import MixedPrecision\nexcept ImportError:\n"
        "    MixedPrecision = None"
    ),
    "types alone": (
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
        "    from torch.distributed.fsdp import ShardingStrategy"
    ),
}


def _wrap_of(head: str) -> tuple[str, str]:
    _, after = migrate({"train.py": PROGRAM.replace("HEAD", head)})
    above, _, below = after["train.py"].partition("def wrap(")
    return above, below.partition("def save(")[0]


def test_what_the_head_imports_for_certain_stands_there() -> None:
    above, function = _wrap_of(CERTAIN)
    assert "fully_shard" in above
    assert "get_model_state_dict" in above
    assert "import" not in function
    assert "fully_shard(" in function


@pytest.mark.parametrize("head", UNSURE)
def test_else_the_function_imports_for_itself(head: str) -> None:
    above, function = _wrap_of(UNSURE[head])
    assert "fully_shard" not in above
    assert "import fully_shard" in function
