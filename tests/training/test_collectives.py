"""Parameters that a program sends to other replicas itself: each rank's own part, as in FSDP1."""

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


def build(shards):
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    return FSDP(
        model, process_group=shards, device_id=torch.device("cpu"), use_orig_params=True
    )


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(rank // 2)
    model = build(pairs[rank // 2])
    for p in model.parameters():
        dist.broadcast(p.data, src=rank % 2, group=across[rank % 2])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for step in range(4):
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:  # of an empty piece FSDP1 has none
                dist.all_reduce(p.grad, group=across[rank % 2])
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""


SENT = """\
                received = torch.empty_like(p.grad)
                works = dist.batch_isend_irecv(
                    [
                        dist.P2POp(dist.isend, p.grad, (rank + 2) % 4),
                        dist.P2POp(dist.irecv, received, (rank + 2) % 4),
                    ]
                )
                for work in works:
                    work.wait()
                p.grad += received
"""


def test_what_is_sent_from_rank_to_rank(launcher: Launcher, tmp_path: Path) -> None:
    reduced = "                dist.all_reduce(p.grad, group=across[rank % 2])\n"
    program = PROGRAM.replace(reduced, SENT)
    both = written({"train.py": program.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow", ranks=4)
    after = launcher.script(both.after, fsdp1="forbid", ranks=4)
    assert compare(before, after, tolerance=1e-5) == 16


def test_trains_the_same(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow", ranks=4)
    after = launcher.script(both.after, fsdp1="forbid", ranks=4)
    assert compare(before, after, tolerance=1e-5) == 16
