"""What is written through an optimizer's groups after an evaluation, before the next backward.

FSDP1's forwards did not see it in what was still gathered, and FSDP2's do not: the numbers are the
same. Under NO_SHARD nothing was gathered, and FSDP1 saw it at once.
"""

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


def main(how):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 1))
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({nn.Sequential}),
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.STRATEGY,
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    average = [p.detach().clone() for p in optimizer.param_groups[0]["params"]]
    for step in range(4):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
        with torch.no_grad():
            print("before", model(inputs).pow(2).mean().item())
            for group in optimizer.param_groups:
                for p, kept in zip(group["params"], average):
                    kept.mul_(0.5).add_(p, alpha=0.5)
                    if how == "mul":
                        p.mul_(0.9)
                    elif how == "data":
                        p.data.mul_(0.9)
                    else:
                        p.copy_(kept)
            print("after", model(inputs).pow(2).mean().item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


WRITES = ("mul", "data", "copy")


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_they_are_seen_when_fsdp1_saw_them(
    strategy: str, how: str, launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.replace("STRATEGY", strategy).encode()}, tmp_path)
    before = launcher.script(both.before, how, fsdp1="allow")
    after = launcher.script(both.after, how, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5) == 24


def test_without_resharding_a_replicated_model_misses_them(
    launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.replace("STRATEGY", "NO_SHARD").encode()}, tmp_path)
    text = both.text()
    assert "model.reshard()" in text
    both.after.write_text(text.replace("model.reshard()", "pass"))
    before = launcher.script(both.before, "mul", fsdp1="allow")
    naive = launcher.script(both.after, "mul", fsdp1="forbid")
    assert before.numbers("before") != pytest.approx(naive.numbers("before"), rel=1e-3)
