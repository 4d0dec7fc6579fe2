"""FSDP1's questions about models of FSDP2 (FSDP914)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes, mended
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, fully_shard

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).pow(2).sum().backward()


def count(tensors):
    return float(sum(getattr(t, "_local_tensor", t).numel() for t in tensors))


BODY
dist.destroy_process_group()
"""
SILENT = {
    "isinstance": ('print("told", float(isinstance(model, FSDP)))', 0.0),
    "summon_full_params": (
        'with FSDP.summon_full_params(model):\n    print("told", count(model.parameters()))',
        15.0,
    ),
    "set_state_dict_type": (
        "FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)\n"
        'print("told", count(model.state_dict().values()))',
        15.0,
    ),
    "fsdp_modules": ('print("told", float(len(FSDP.fsdp_modules(model))))', 0.0),
}
LOUD = {
    "state_dict_type": (
        "with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n    pass",
        "KeyError",
    ),
    "optim_state_dict": ("FSDP.optim_state_dict(model, optimizer)", "AttributeError"),
    "full_optim_state_dict": ("FSDP.full_optim_state_dict(model, optimizer)", "IndexError"),
    "sharded_optim_state_dict": ("FSDP.sharded_optim_state_dict(model, optimizer)", "IndexError"),
    "optim_state_dict_to_load": (
        "FSDP.optim_state_dict_to_load(model, optimizer, optimizer.state_dict())",
        "AttributeError",
    ),
    "unbound clipping": ("FSDP.clip_grad_norm_(model, 1.0)", "AttributeError"),
    "clipping": ("model.clip_grad_norm_(1.0)", "AttributeError"),
    "no_sync": ("with model.no_sync():\n    pass", "AttributeError"),
}
RIGHT = {
    "isinstance": (
        "from torch.distributed.fsdp import FSDPModule\n"
        'print("told", float(isinstance(model, FSDPModule)))',
        1.0,
    ),
    "full_tensor": ('print("told", count(p.full_tensor() for p in model.parameters()))', 30.0),
}
CAUGHT = """\
try:
    {body}
    print("raised nothing")
except Exception as error:
    print("raised", type(error).__name__)
"""


@pytest.mark.parametrize("how", SILENT)
def test_what_says_nothing_does_nothing(launcher: Launcher, tmp_path: Path, how: str) -> None:
    body, told = SILENT[how]
    wrong = PROGRAM.replace("BODY", body)
    assert codes(wrong) == ["FSDP914"]
    (tmp_path / "train.py").write_text(wrong)
    assert launcher.script(tmp_path / "train.py").numbers("told") == [told]


@pytest.mark.parametrize("how", RIGHT)
def test_what_fsdp2_is_asked_answers(launcher: Launcher, tmp_path: Path, how: str) -> None:
    body, told = RIGHT[how]
    right = PROGRAM.replace("BODY", body)
    assert codes(right) == []
    (tmp_path / "train.py").write_text(right)
    assert launcher.script(tmp_path / "train.py").numbers("told") == [told]


def test_what_raises_is_found_and_an_error_that_is_caught_is_not(
    launcher: Launcher, tmp_path: Path
) -> None:
    tried = ""
    for body, _ in LOUD.values():
        assert codes(PROGRAM.replace("BODY", body)) == ["FSDP914"]
        tried += CAUGHT.format(body=body.replace("\n", "\n    "))
    assert codes(PROGRAM.replace("BODY", tried)) == []
    (tmp_path / "train.py").write_text(PROGRAM.replace("BODY", tried))
    output = launcher.script(tmp_path / "train.py").output[0].splitlines()
    raised = [line.split()[1] for line in output if line.startswith("raised")]
    assert dict(zip(LOUD, raised, strict=True)) == {how: error for how, (_, error) in LOUD.items()}


def test_clipping_that_is_mended_clips(launcher: Launcher, tmp_path: Path) -> None:
    total = "sum(p.grad.full_tensor().pow(2).sum() for p in model.parameters()) ** 0.5"
    body = f'model.clip_grad_norm_(1.0)\nprint("told", float({total}))'
    right = mended(PROGRAM.replace("BODY", body))
    assert codes(right) == []
    (tmp_path / "train.py").write_text(right)
    (told,) = launcher.script(tmp_path / "train.py").numbers("told")
    assert told == pytest.approx(1.0, rel=1e-4)
