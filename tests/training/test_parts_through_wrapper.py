"""Parts of a sharded model, read through FSDP1's wrapper around the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import migrate, rewritten
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x):
        return x + self.layer(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.width = 4
        self.encoder = FSDP(Encoder(4), device_id=torch.device("cpu"), use_orig_params=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=True)
    encoder = model.encoder
    print("an encoder", isinstance(encoder, Encoder), isinstance(encoder.module, Encoder))
    print("a head", isinstance(model.head, nn.Linear))
    print("width", model.width, model.encoder.module.layer.in_features)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        print("norm", float(model.clip_grad_norm_(0.1)))
        print("loss", loss.item())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main()
"""


@pytest.mark.train
def test_they_are_the_parts_of_the_module_inside(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    assert ".module" not in both.text()
    assert "TODO" not in both.text()
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 12


HEAD = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = {part}


model = FSDP(Net(), use_orig_params=True)
"""
SHARDED = "FSDP(nn.Linear(4, 4), use_orig_params=True)"


@pytest.mark.parametrize(
    ("part", "asked", "kept"),
    [
        (SHARDED, "isinstance(model.part, nn.Linear)", False),
        (SHARDED, "model.part.module", False),
        ("nn.Linear(4, 4)", "isinstance(model.part, nn.Linear)", True),
        (SHARDED, "isinstance(model.other, nn.Linear)", True),
    ],
)
def test_only_parts_that_are_sharded_are_sites(part: str, asked: str, kept: bool) -> None:
    after = rewritten(HEAD.replace("{part}", part) + f"print({asked})\n")
    assert (f"print({asked})\n" in after) is kept


def test_what_is_assigned_to_the_wrapper_hides_the_part() -> None:
    """FSDP1's wrapper has what is set on it itself; a part that it has besides is sharded here."""
    assigned = f"\n\ndef extend():\n    model.part = {SHARDED}\n\n\n"
    asked = "def ask():\n    return isinstance(model.part, nn.Linear)\n"
    head = HEAD.replace("{part}", "nn.Linear(4, 4)")
    result, _ = migrate({"example.py": head + assigned + asked})
    assert "class of a model" in {str(d.site.construct) for d in result.decisions}
    after = rewritten(f"{head}\n\n{asked}")
    assert asked in after
