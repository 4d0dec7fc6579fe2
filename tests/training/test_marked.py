"""What markers say of FSDP1 and FSDP2 is so: the program as it was, and with what is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, Pair, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import functools

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.first(x).relu())


@functools.singledispatch
def scale(model):
    return 1.0


@scale.register
def scale_net(model: Net):
    return 2.0


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    ASKED
    dist.destroy_process_group()


main()
"""
TRAINED = """\
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
"""


def program(asked: str, scratch: Path) -> Pair:
    text = PROGRAM.replace("    ASKED\n", f"    {asked}\n    print('asked', answer)\n{TRAINED}")
    return written({"train.py": text.encode()}, scratch)


@pytest.mark.parametrize(
    ("code", "asked", "before", "after"),
    [
        ("FSDP425", "answer = len(list(model.children()))", 1.0, 2.0),
        ("FSDP425", "answer = len([name for name, _ in model.named_children()])", 1.0, 2.0),
        ("FSDP424", "answer = scale(model)", 1.0, 2.0),
    ],
)
def test_another_answer_is_marked(
    code: str, asked: str, before: float, after: float, launcher: Launcher, tmp_path: Path
) -> None:
    both = program(asked, tmp_path)
    assert f"TODO(fsdp-migrate {code})" in both.after.read_text()
    for script, answer in ((both.before, before), (both.after, after)):
        told, trained = [], []
        for line in launcher.script(script).output[0].splitlines():
            (told if line.startswith("asked") else trained).append(float(line.split()[-1]))
        assert told == [answer]
        assert len(trained) == 2


def test_the_same_answer_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = program("answer = sum(isinstance(m, nn.Linear) for m in model.modules())", tmp_path)
    assert "TODO" not in both.after.read_text()
    assert compare(launcher.script(both.before), launcher.script(both.after)) == 4  # losses


REPLACED = """\
import torch
import torch.distributed as dist
from torch import nn
HEAD


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    SHARD
    x = torch.ones(2, 4)
    print("loss", model(x).pow(2).mean().item())
    model(x).sum().backward()
    model[0].weight = nn.Parameter(2 * model[0].weight.detach())
    print("loss", model(x).pow(2).mean().item())
    dist.destroy_process_group()


main()
"""


def test_a_parameter_put_in_the_place_of_a_sharded_one_is_lost(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Why FSDP415 leaves such a model as it was."""
    versions = {
        "fsdp1": (
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
            'model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)',
        ),
        "fsdp2": ("from torch.distributed.fsdp import fully_shard", "fully_shard(model)"),
    }
    changed = {}
    for name, (head, shard) in versions.items():
        script = tmp_path / f"{name}.py"
        script.write_text(REPLACED.replace("HEAD", head).replace("SHARD", shard))
        losses = launcher.script(script).output[0].split("loss")[1:]
        first, second = map(float, losses)
        changed[name] = abs(second - first) > 1e-6
    assert changed == {"fsdp1": True, "fsdp2": False}
