"""What recording costs a training step: ``python benchmarks/verify.py``.

A transformer of realistic layers is sharded over two ranks and trained, in turn without a recorder,
with one that records times only (as for ``--timing``), and with one that records everything.
Medians of steps after the first few; the best of a few runs each.

Bar: times are disturbed by at most 3 %, and no number changes by a bit.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from fsdp_migrate.verify.inject.config import VARIABLE, Config
from fsdp_migrate.verify.launch.environment import environment

BAR = 0.03
RUNS = 3
STEPS = 8
PROGRAM = """
import statistics, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
layers = [nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(4)]
model = nn.Sequential(nn.Embedding(8192, 512), *layers, nn.Linear(512, 8192))
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for layer in model[1:-1]:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
draw = torch.Generator().manual_seed(rank)
times = []
for step in range(int(sys.argv[1])):
    started = time.perf_counter()
    tokens = torch.randint(0, 8192, (4, 129), generator=draw)
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - started)
if rank == 0:
    print(statistics.median(times[3:]), repr(loss.item()))
dist.destroy_process_group()
"""


def run(script: Path, folder: Path, config: Config | None) -> tuple[float, str]:
    """Seconds of a step, and the last loss to all digits."""
    folder.mkdir()
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env["OMP_NUM_THREADS"] = "1"
    if config is not None:
        config = dataclasses.replace(config, folder=str(folder))
        env = environment(config, extra={}, scratch=folder)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*launch, str(script), str(STEPS)], env=env, capture_output=True, text=True, check=True
    )
    seconds, loss = done.stdout.split()[-2:]
    return float(seconds), loss


def main() -> int:
    full = Config(folder="", run="benchmark", max_steps=10**6, seed=0)
    ways = {
        "no recorder": None,
        "times only": dataclasses.replace(full, timing=True),
        "everything": full,
    }
    best = dict.fromkeys(ways, float("inf"))
    losses = set()
    with tempfile.TemporaryDirectory() as name:
        script = Path(name) / "train.py"
        script.write_text(PROGRAM, encoding="utf-8")
        for number in range(RUNS):
            for way, config in ways.items():
                folder = Path(name) / f"{way} {number}".replace(" ", "-")
                seconds, loss = run(script, folder, config)
                best[way] = min(best[way], seconds)
                losses.add(loss)
    plain = best["no recorder"]
    for way, seconds in best.items():
        print(f"{way:<12} {1000 * seconds:>8.1f} ms a step  {100 * (seconds / plain - 1):>+6.1f} %")
    print(f"last loss, all runs: {', '.join(sorted(losses))}")
    good = best["times only"] <= plain * (1 + BAR) and len(losses) == 1
    print(f"bar: times within {100 * BAR:.0f} %, equal numbers: {'holds' if good else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
