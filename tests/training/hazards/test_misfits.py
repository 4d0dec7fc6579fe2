"""Calls that cannot bind raise, and what ``rewrite --hazards`` makes of them runs (FSDP951 to
FSDP953)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.hazards import codes, mended
from tests.training.programs import Launcher

pytestmark = pytest.mark.train

CASE = """\
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
mesh = init_device_mesh("cpu", (2,))


def case(model, inputs, folder):
    BODY
    model(inputs).sum().backward()
"""
PROGRAM = """\
import importlib
import sys
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
here = Path(__file__).parent
sys.path.insert(0, str(here))
for path in sorted(here.glob("case_*.py")):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    try:
        importlib.import_module(path.stem).case(model, torch.ones(2, 4), str(here / path.stem))
        print(path.stem, "fine")
    except Exception as error:
        print(path.stem, type(error).__name__)
    dist.barrier()
dist.destroy_process_group()
"""
SHARDED = "fully_shard(model, mesh=mesh)\n    "
STATES = (
    f"{SHARDED}optimizer = torch.optim.AdamW(model.parameters())\n"
    "    model(inputs).sum().backward()\n    optimizer.step()\n"
    "    state, moments = get_state_dict(model, optimizer)\n    "
)
WHOLE = (
    f"{SHARDED}state = get_model_state_dict(\n"
    "        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)\n    )\n    "
)
BODIES = {
    "mesh by another name": ("FSDP951", "fully_shard(model, device_mesh=mesh)"),
    "mesh by position": ("FSDP951", "fully_shard(model, mesh)"),
    "module by another name": ("FSDP951", "fully_shard(model=model, mesh=mesh)"),
    "mixed precision": ("FSDP951", "fully_shard(model, mesh=mesh, mixed_precision=policy)"),
    "use_orig_params": ("FSDP951", "fully_shard(model, mesh=mesh, use_orig_params=True)"),
    "dimensions by position": (
        "FSDP951",
        'fully_shard(model, mesh=init_device_mesh("cpu", (2,), ("data",)))',
    ),
    "offload_params": (
        "FSDP951",
        "offload = CPUOffloadPolicy(offload_params=True, pin_memory=False)\n"
        "    fully_shard(model, mesh=mesh, offload_policy=offload)",
    ),
    "a method's setting": ("FSDP951", f"{SHARDED}model.set_requires_gradient_sync(sync=False)"),
    "a method's recurse": ("FSDP951", f"{SHARDED}model.set_requires_gradient_sync(True, True)"),
    "no policy": ("FSDP953", "fully_shard(model, mesh=mesh, mp_policy=None)"),
    "broadcast": ("FSDP952", f"{WHOLE}set_model_state_dict(model, state, broadcast=True)"),
    "full_state_dict": (
        "FSDP952",
        f"{SHARDED}state = get_model_state_dict(model, full_state_dict=True, cpu_offload=True)",
    ),
    "options by position": (
        "FSDP952",
        f"{SHARDED}state = get_model_state_dict(model, StateDictOptions(full_state_dict=True))",
    ),
    "a field of FSDP1's": (
        "FSDP952",
        f"{SHARDED}options = StateDictOptions(full_state_dict=True, offload_to_cpu=True)\n"
        "    state = get_model_state_dict(model, options=options)",
    ),
    "states by position": ("FSDP952", f"{STATES}set_state_dict(model, optimizer, state, moments)"),
    "state by another name": (
        "FSDP952",
        f"{STATES}set_optimizer_state_dict(model, optimizer, optimizer_state_dict=moments)",
    ),
    "a path by another name": (
        "FSDP952",
        f"{SHARDED}dcp.save(get_model_state_dict(model), path=folder)",
    ),
}
ERRORS = {"FSDP951": "TypeError", "FSDP952": "TypeError", "FSDP953": "AttributeError"}


def endings(sources: list[str], launcher: Launcher, folder: Path) -> list[str]:
    """How each case ends on rank 0, and on the other as well."""
    for number, source in enumerate(sources):
        (folder / f"case_{number:02}.py").write_text(source)
    (folder / "train.py").write_text(PROGRAM)
    run = launcher.script(folder / "train.py", fsdp1="forbid")
    first, second = (
        [line.split()[1] for line in output.splitlines() if line.startswith("case_")]
        for output in run.output
    )
    assert first == second
    return first


def test_wrong_calls_raise_and_mended_ones_run(launcher: Launcher, tmp_path: Path) -> None:
    wrong = [CASE.replace("BODY", body) for _, body in BODIES.values()]
    asked = [code for code, _ in BODIES.values()]
    assert [codes(source) for source in wrong] == [[code] for code in asked]
    right = [mended(source) for source in wrong]
    assert all(codes(source) == [] for source in right)
    (tmp_path / "wrong").mkdir()
    seen = dict(zip(BODIES, endings(wrong, launcher, tmp_path / "wrong"), strict=True))
    assert seen == {name: ERRORS[code] for name, (code, _) in BODIES.items()}
    (tmp_path / "right").mkdir()
    seen = dict(zip(BODIES, endings(right, launcher, tmp_path / "right"), strict=True))
    assert seen == dict.fromkeys(BODIES, "fine")
