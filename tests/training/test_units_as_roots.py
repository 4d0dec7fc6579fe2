"""A model that a method of its own trains, around the root's forward: units cast their inputs.

It does not end its process group: what watches models then would gather them from their root, which
FSDP1 refuses here.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Failed, Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time = nn.Linear(4, 8)
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 8)

    def forward(self, x, t):
        return self.second(torch.relu(self.first(x))) + self.time(t)

    def loss(self, tokens):
        x = nn.functional.one_hot(tokens, 8).float()
        t = torch.linspace(0, 1, len(tokens) * 4).reshape(-1, 4)
        return (self.forward(x, t) - x).square().mean()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Denoiser(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        device_id=torch.device("cpu"),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.manual_seed(dist.get_rank())
    for _ in range(4):
        optimizer.zero_grad()
        found = model.loss(torch.randint(8, (6,)))
        found.backward()
        optimizer.step()
        print("loss", found.item())


main()
"""


def test_what_the_marker_says_is_enough(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    text = both.after.read_text()
    assert "TODO(fsdp-migrate FSDP411): FSDP1 cast the floating-point inputs of each unit" in text
    with pytest.raises(Failed, match="must have the same dtype"):
        launcher.script(both.after, fsdp1="forbid")
    assert "cast_forward_inputs=False" in text
    both.after.write_text(text.replace("cast_forward_inputs=False", "cast_forward_inputs=True"))
    before = launcher.script(both.before)
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) >= 4
