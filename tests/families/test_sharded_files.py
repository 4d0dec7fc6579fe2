"""Sharded states that something else than torch.distributed.checkpoint writes, reads or asks."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
{imports}

model = FSDP(net)
"""
CONTEXT = """\
with FSDP.state_dict_type(model, StateDictType.KIND_STATE_DICT):
    state = model.state_dict()
"""
SETTING = """\
FSDP.set_state_dict_type(model, StateDictType.KIND_STATE_DICT)
state = model.state_dict()
"""
SAVE = 'torch.save(state, f"{dist.get_rank()}.pt")\n'
WRITER = "import torch\n\n\ndef write(path, state):\n    torch.save(state, path)\n"
ASKER = (
    "from torch.distributed._shard.sharded_tensor import ShardedTensor\n\n\n"
    "def write(path, state):\n    return [isinstance(v, ShardedTensor) for v in state.values()]\n"
)
HANDED = 'write("there", state)\n'


def said(files: dict[str, str]) -> list[str]:
    result, after = migrate(files)
    assert "fully_shard(net)" in after["example.py"]
    return [d.help for d in result.decisions if d.outcome is Outcome.REVIEW]


def program(chosen: str, use: str, kind: str = "SHARDED", imports: str = "") -> str:
    return HEAD.format(imports=imports) + chosen.replace("KIND", kind) + use


@pytest.mark.parametrize("chosen", [CONTEXT, SETTING])
@pytest.mark.parametrize("other", [WRITER, ASKER])
def test_files_that_dcp_did_not_write_are_spoken_of_once(chosen: str, other: str) -> None:
    text = program(chosen, HANDED, imports="from writer import write")
    [why] = said({"example.py": text, "writer.py": other})
    assert "torch.distributed.checkpoint did not write" in why


@pytest.mark.parametrize("chosen", [CONTEXT, SETTING])
def test_a_file_for_each_rank_is_spoken_of(chosen: str) -> None:
    [why] = said({"example.py": program(chosen, SAVE)})
    assert "ShardedTensor" in why


DCP = [
    ("import torch.distributed.checkpoint as dcp", 'dcp.save(state, checkpoint_id="there")\n'),
    ("from torch.distributed import checkpoint", 'checkpoint.save(state, checkpoint_id="x")\n'),
    ("import torch.distributed.checkpoint", 'torch.distributed.checkpoint.save(state, "x")\n'),
    ("from torch.distributed.checkpoint import save", 'save(state, checkpoint_id="there")\n'),
]


@pytest.mark.parametrize("chosen", [CONTEXT, SETTING])
@pytest.mark.parametrize(("imports", "use"), DCP)
def test_what_dcp_writes_goes_on(chosen: str, imports: str, use: str) -> None:
    other = 'torch.save(3, "steps")\n'
    assert said({"example.py": program(chosen, use + other, imports=imports)}) == []


@pytest.mark.parametrize("chosen", [CONTEXT, SETTING])
def test_a_whole_state_goes_on(chosen: str) -> None:
    assert said({"example.py": program(chosen, SAVE, "FULL")}) == []


@pytest.mark.parametrize("chosen", [CONTEXT, SETTING])
def test_a_state_that_no_file_is_seen_of_goes_on(chosen: str) -> None:
    assert said({"example.py": program(chosen, "print(list(state))\n")}) == []


@pytest.mark.parametrize("chosen", [CONTEXT, SETTING])
def test_a_local_state_has_its_own_reason(chosen: str) -> None:
    [why] = said({"example.py": program(chosen, SAVE, "LOCAL")})
    assert "LOCAL form" in why


@pytest.mark.parametrize("chosen", [CONTEXT, SETTING])
def test_with_a_mesh_the_states_had_dtensors_before(chosen: str) -> None:
    text = program(chosen, SAVE).replace("FSDP(net)", "FSDP(net, device_mesh=mesh)")
    result, _ = migrate({"example.py": text})
    assert all(d.outcome is Outcome.REWRITTEN for d in result.decisions)


@pytest.mark.parametrize("mesh", ["None", "(mesh if many else None)"])
def test_where_the_mesh_may_be_none_they_may_not(mesh: str) -> None:
    text = program(CONTEXT, SAVE).replace("FSDP(net)", f"FSDP(net, device_mesh={mesh})")
    result, _ = migrate({"example.py": text})
    assert any("ShardedTensor" in d.help for d in result.decisions)
