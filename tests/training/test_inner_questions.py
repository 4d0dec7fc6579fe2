"""A freeze under ``hasattr(model, "module")``, which FSDP2 models skip: it is marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def freeze(model):
    if hasattr(model, "module"):
        model.module[0].requires_grad_(False)


dist.init_process_group("gloo")
torch.manual_seed(3)
net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))
model = FSDP(net, use_orig_params=True, device_id=torch.device("cpu"))
freeze(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(4):
    loss = model(torch.randn(4, 5)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


def test_it_trains_as_before_once_the_marker_is_followed(
    launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert "TODO(fsdp-migrate FSDP406)" in both.text()
    expected = launcher.script(both.before, fsdp1="allow").numbers("loss")
    skipped = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    assert skipped != pytest.approx(expected, rel=1e-3)
    done = both.text().replace('if hasattr(model, "module"):', "if True:")
    both.after.write_text(done.replace("model.module[0]", "model[0]"))
    found = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    assert found == pytest.approx(expected, rel=1e-5)
