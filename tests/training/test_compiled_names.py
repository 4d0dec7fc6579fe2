"""States of compiled models: FSDP1 gave them the names that ``torch.compile`` makes."""

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


def compiled(module):
    return torch.compile(module, backend="eager")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    PARTS
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    whole = WHOLE
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(2):
        loss = whole(inputs).pow(2).mean()
        loss.backward()
        print("loss", loss.item())
        optimizer.step()
        optimizer.zero_grad()
    for name, value in ASKED.state_dict().items():
        print("state", name, value.sum().item())
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize(
    ("parts", "whole", "asked", "differ"),
    [
        ("", "compiled(model)", "whole", True),
        ("net = compiled(net)", "model", "whole", True),
        ("net[0] = torch.compile(net[0], backend='eager')", "model", "model", True),
        ("", "torch.compile(model, backend='eager')", "model", False),
    ],
)
def test_other_names_are_marked(
    launcher: Launcher, tmp_path: Path, parts: str, whole: str, asked: str, differ: bool
) -> None:
    text = PROGRAM.replace("PARTS", parts).replace("WHOLE", whole).replace("ASKED", asked)
    both = written({"train.py": text.encode()}, tmp_path)
    assert ("'_orig_mod.' in them" in both.text()) == differ
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert ("_orig_mod." in before.output[0]) == differ
    assert "_orig_mod." not in after.output[0]
    if not differ:
        assert compare(before, after) == 20
    assert sum(after.numbers("state")) == pytest.approx(sum(before.numbers("state")))
