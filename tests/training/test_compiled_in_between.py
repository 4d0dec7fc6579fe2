"""An optimizer moves behind the sharding, also past what moves its model or compiles it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
model = model.to("cpu")
if dist.get_world_size() > 1:
    model = torch.compile(model, backend="eager")
model = FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))
torch.manual_seed(1 + dist.get_rank())
for step in range(4):
    loss = model(torch.randn(4, 6)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item(), flush=True)
dist.destroy_process_group()
"""


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert text.index("torch.compile(") < text.index("fully_shard(model") < text.index("optim.SGD")
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 8
