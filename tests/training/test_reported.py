"""What would quietly do nothing on an FSDP2 model is reported, and holds its model back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, outcomes
from tests.training.programs import Launcher

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def shrink(model):
    found = 0
    for module in model.modules():
        if hasattr(module, "_handle") and module._handle is not None:
            module._handle.flat_param.data.mul_(0.5)
            found += 1
    return found


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)
    before = model(torch.ones(1, 4)).sum()
    before.backward()
    print("units", float(shrink(model)))
    print("ratio", (model(torch.ones(1, 4)).sum() / before).item())
    dist.destroy_process_group()


main()
"""
NAIVE = PROGRAM.replace("FullyShardedDataParallel as FSDP", "fully_shard").replace(
    'FSDP(nn.Linear(4, 4), device_id=torch.device("cpu"), use_orig_params=True)',
    'fully_shard(nn.Linear(4, 4), mesh=dist.device_mesh.init_device_mesh("cpu", (2,)))',
)
PATCHED = """\
from unittest import mock

import train


def test_it_builds():
    with mock.patch("train.FSDP") as wrapper:
        train.main()
    assert wrapper.called
"""


@pytest.mark.train
def test_handles_that_are_asked_for_hold_the_model_back(launcher: Launcher, tmp_path: Path) -> None:
    result, after = migrate({"train.py": PROGRAM})
    assert {outcome for _, outcome in outcomes(result)} == {Outcome.LEFT}
    assert "FSDP(nn.Linear" in after["train.py"]
    ratios = []
    for name, text in (("before", PROGRAM), ("naive", NAIVE)):
        script = tmp_path / name / "train.py"
        script.parent.mkdir()
        script.write_text(text)
        ratios += launcher.script(script).numbers("ratio")
    assert ratios == pytest.approx([0.5, 1.0])


def test_names_that_are_patched_are_reported() -> None:
    result, _ = migrate({"train.py": PROGRAM, "test_train.py": PATCHED})
    found = {d.site.module.source.path.name for d in result.decisions if d.code == "FSDP499"}
    assert "test_train.py" in found
