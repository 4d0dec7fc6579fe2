"""A slice of a list of parameters in a forward: FSDP1 did not train it, and the tool says so."""

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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ParameterList(nn.Parameter(torch.ones(2, 4)) for _ in range(2))

    def forward(self, x):
        return x @ torch.cat(list(TAKEN)).t()


def main():
    dist.init_process_group("gloo")
    model = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=ORIGINAL)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize("original", ["False", "True"])
@pytest.mark.parametrize("taken", ["self.blocks[:2]", "nn.ParameterList(self.blocks)"])
def test_a_slice_trains_now_and_is_marked(
    taken: str, original: str, launcher: Launcher, tmp_path: Path
) -> None:
    source = PROGRAM.replace("ORIGINAL", original).replace("TAKEN", taken)
    both = written({"train.py": source.encode()}, tmp_path)
    assert "FSDP408" in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    after = launcher.script(both.after, fsdp1="forbid").numbers("loss")
    assert before == [16, 16, 16]
    assert after == pytest.approx([16, 14.4, 12.8])


def test_a_list_of_them_trained_before(launcher: Launcher, tmp_path: Path) -> None:
    source = PROGRAM.replace("ORIGINAL", "True").replace("TAKEN", "list(self.blocks)[:2]")
    both = written({"train.py": source.encode()}, tmp_path)
    assert "FSDP408" not in both.text()
    before = launcher.script(both.before, fsdp1="allow").numbers("loss")
    assert launcher.script(both.after, fsdp1="forbid").numbers("loss") == pytest.approx(before)
