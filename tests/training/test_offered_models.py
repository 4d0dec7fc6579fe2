"""A package whose users wrap models with it: the state that its trainer saves is marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families.test_offered_models import TRAINER, WRAP
from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

USED = """\
import torch
import torch.distributed as dist
from torch import nn
from trainer import Trainer
from wrap import wrap_model

dist.init_process_group("gloo")
model = wrap_model(nn.Linear(4, 4), "fsdp")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
trainer = Trainer(model, torch.optim.lr_scheduler.StepLR(optimizer, 1))
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
path = f"state{dist.get_rank()}.pt"
trainer.save(path)
weight = torch.load(path, weights_only=False)["model"]["weight"]
print("rows", float(getattr(weight, "_local_tensor", weight).shape[0]))
dist.destroy_process_group()
"""


def test_the_state_has_pieces_now(launcher: Launcher, tmp_path: Path) -> None:
    wrap = WRAP.replace("FSDP(model)", 'FSDP(model, device_id="cpu")')
    wrap = wrap.replace('"cpu"', 'torch.device("cpu")').replace("from", "import torch\nfrom", 1)
    files = {"wrap.py": wrap.encode(), "trainer.py": TRAINER.encode()}
    both = written(files, tmp_path, "trainer.py")
    assert "TODO(fsdp-migrate FSDP302)" in both.after.read_text()
    rows = []
    for trainer, fsdp1 in ((both.before, "allow"), (both.after, "forbid")):
        used = trainer.parent / "used.py"
        used.write_text(USED)
        rows += launcher.script(used, fsdp1=fsdp1).numbers("rows")
    assert rows == [4, 2]
