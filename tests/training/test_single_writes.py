"""What is written to one parameter after an evaluation is there after the next step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x):
        return self.head(self.body(x) * self.scale)


def main(evaluated):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = FSDP(
        Net(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}),
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.STRATEGY,
        use_orig_params=True,
    )
    # Of rate 0: what is written shows, not when a forward saw it.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
        if evaluated == "yes":
            model.eval()
            with torch.no_grad():
                model(inputs)
            model.train()
        WRITE
        model(inputs).pow(2).mean().backward()
        optimizer.zero_grad()
        with torch.no_grad():
            print("written", model(inputs).pow(2).mean().item())
        model(inputs).pow(2).mean().backward()
        optimizer.zero_grad()
    dist.destroy_process_group()


main(*sys.argv[1:])
"""

WRITES = {
    "data": "model.head.bias.data.clamp_(-0.01 * step, 0.01 * step)",
    "parameter": "with torch.no_grad():\n            model.head.weight.mul_(0.5)",
    "init": "nn.init.constant_(model.scale, 0.5 + step)",
    "assignment": "model.scale.data = model.scale.data * 0.5",
    "augmented": "model.scale.data *= 0.5",
    "unit": "model.body[0].weight.data.add_(0.5)",
}


CASES = [
    *((how, "FULL_SHARD", "yes") for how in WRITES),
    ("data", "FULL_SHARD", "no"),
    ("unit", "SHARD_GRAD_OP", "yes"),
    ("data", "NO_SHARD", "yes"),
]


@pytest.mark.parametrize(("how", "strategy", "evaluated"), CASES)
def test_it_is_kept(
    how: str, strategy: str, evaluated: str, launcher: Launcher, tmp_path: Path
) -> None:
    program = PROGRAM.replace("STRATEGY", strategy).replace("WRITE", WRITES[how])
    both = written({"train.py": program.encode()}, tmp_path)
    units = strategy == "SHARD_GRAD_OP"  # stay gathered as the root does
    assert ("reshard_parameters(model)" if units else "model.reshard()") in both.text()
    before = launcher.script(both.before, evaluated, fsdp1="allow")
    after = launcher.script(both.after, evaluated, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 12


def test_without_resharding_it_is_lost(launcher: Launcher, tmp_path: Path) -> None:
    program = PROGRAM.replace("STRATEGY", "FULL_SHARD").replace("WRITE", WRITES["data"])
    both = written({"train.py": program.encode()}, tmp_path)
    both.after.write_text(both.text().replace("model.reshard()", "pass"))
    before = launcher.script(both.before, "yes", fsdp1="allow")
    naive = launcher.script(both.after, "yes", fsdp1="forbid")
    assert before.numbers("written") != pytest.approx(naive.numbers("written"), rel=1e-3)


def test_a_model_that_is_only_trained_is_sharded(launcher: Launcher, tmp_path: Path) -> None:
    program = PROGRAM.replace("STRATEGY", "FULL_SHARD").replace(
        "WRITE",
        "for p in model.parameters():\n            p.data.mul_(0.9)\n"
        "        nn.init.constant_(model.scale, 0.5 + step)\n"
        "        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)",
    )
    start = program.index('        if evaluated == "yes"')
    program = program[:start] + program[program.index("        for p in", start) :]
    start = program.index("        with torch.no_grad():\n            print")
    program = program[:start] + program[program.index("        model(inputs)", start) :]
    both = written({"train.py": program.encode()}, tmp_path)
    assert "reshard" not in both.text()
    before = launcher.script(both.before, "no", fsdp1="allow")
    after = launcher.script(both.after, "no", fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 6
