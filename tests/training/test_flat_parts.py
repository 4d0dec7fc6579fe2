"""An optimizer that is given parts of a model: FSDP1 trained none of it, and that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x):
        return self.lin(x).relu()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.block(x))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    policy = ModuleWrapPolicy({Block})
    model = FSDP(Net(), auto_wrap_policy=policy, device_id=torch.device("cpu")OWN)
    optimizer = torch.optim.SGD([{"params": model.block.parameters()}, GROUP], lr=0.5)
    torch.manual_seed(dist.get_rank())
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""
HEAD = '{"params": model.head.parameters()}'


def files(group: str, own: str) -> dict[str, bytes]:
    return {"train.py": PROGRAM.replace("GROUP", group).replace("OWN", own).encode()}


def test_what_fsdp1_did_not_train_is_marked(launcher: Launcher, tmp_path: Path) -> None:
    both = written(files(HEAD, ""), tmp_path)
    assert "TODO(fsdp-migrate FSDP408)" in both.text()
    runs = [launcher.script(script).output[0].split() for script in (both.before, both.after)]
    before, after = ([float(word) for word in run if word != "loss"] for run in runs)
    assert before[0] == pytest.approx(after[0])
    assert before[1] != pytest.approx(after[1], rel=1e-3)


@pytest.mark.parametrize(
    ("group", "own"), [('{"params": []}', ""), (HEAD, ", use_orig_params=True")]
)
def test_what_both_train_is_not(group: str, own: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written(files(group, own), tmp_path)
    assert "TODO" not in both.text()
    assert compare(launcher.script(both.before), launcher.script(both.after)) == 6
