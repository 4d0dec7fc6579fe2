"""Flat parameters whose memory is given back, and what else is done with a unit's handle."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imported}


def shard(net):
    return FSDP(net)


def free(model):
    for m in model.modules():
        if isinstance(m, FSDP):
            {freeing}
"""
TORCHS = "from torch.distributed.utils import _free_storage"
FREEING = "_free_storage(m._handle.flat_param.data)"


@pytest.mark.parametrize(
    ("imported", "function"),
    [
        (TORCHS, "_free_storage"),
        (f"{TORCHS} as give_back", "give_back"),
        ("import torch.distributed.utils as utils", "utils._free_storage"),
    ],
)
def test_the_parts_of_a_unit_are_freed(imported: str, function: str) -> None:
    freeing = FREEING.replace("_free_storage", function, 1)
    result, after = migrate({"example.py": SOURCE.format(imported=imported, freeing=freeing)})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert (
        "            m.reshard()\n            for param in m.parameters():" in after["example.py"]
    )
    assert f"{function}(param.to_local())" in after["example.py"]
    assert not migrate(after)[0].changes


@pytest.mark.parametrize(
    ("imported", "freeing"),
    [
        ("def _free_storage(tensor): ...", FREEING),
        (TORCHS, "print(_free_storage(m._handle.flat_param.data))"),
        (TORCHS, "_free_storage(m._handle.flat_param.grad)"),
        (TORCHS, "_free_storage(m._handle.flat_param.data[:8])"),
        (TORCHS, "_free_storage([m][0]._handle.flat_param.data)"),
    ],
)
def test_anything_else_is_left(imported: str, freeing: str) -> None:
    source = SOURCE.format(imported=imported, freeing=freeing)
    result, after = migrate({"example.py": source})
    assert Outcome.LEFT in {d.outcome for d in result.decisions}
    assert unmarked(after["example.py"]).endswith(f"            {freeing}\n")
