"""How time grows with one project whose scripts share code: ``benchmarks/joined.py [N ...]``.

Makes projects of the given numbers of training scripts (20 and 160 without arguments), which share
one model, the function that shards it with FSDP1, and one loop. Nothing parts them, so that what is
asked of the whole project for every file shows as the square of their number.

Bar: CPU time grows no faster than the number of scripts (a half more is allowed: what is shared
gets the values of all).
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from pathlib import Path

from scale import PROJECT

from fsdp_migrate.cli import session

SIZES = (20, 160)
GROWTH = 1.5
LOOP = """\
import torch
from torch.utils.checkpoint import checkpoint


def train(net, batches, args):
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    for batch in batches:
        loss = net(checkpoint(prepare, batch, use_reentrant=False)).square().mean()
        loss.backward()
        clip(net, args)
        optimizer.step()
        optimizer.zero_grad()
    return evaluate(net, batches)


def prepare(batch):
    return batch.float()


def clip(net, args):
    if args.clip:
        net.clip_grad_norm_(args.clip)


def evaluate(net, batches):
    net.eval()
    with torch.no_grad():
        return sum(net(batch).mean().item() for batch in batches)
"""
SCRIPT = """\
import argparse

import torch
from torch.utils.checkpoint import checkpoint

from loop import train
from model import Net
from sharding import sharded


class Task{number}:
    def __init__(self, args):
        self.args = args
        self.net = sharded(Net(args.size, {number}))

    def run(self, batches):
        score = train(self.net, batches, self.args)
        if self.args.save:
            torch.save(self.net.state_dict(), f"task_{number}.pt")
        return checkpoint(round, score, 3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--save", action="store_true")
    args = parser.parse_args()
    print(Task{number}(args).run([torch.ones(2, args.size)]))


if __name__ == "__main__":
    main()
"""


def make(root: Path, scripts: int) -> None:
    shared = {
        "loop.py": LOOP,
        "model.py": PROJECT["model.py"],
        "sharding.py": PROJECT["sharding.py"],
    }
    for name, text in shared.items():
        (root / name).write_text(text, encoding="utf-8")
    for number in range(scripts):
        text = SCRIPT.format(number=number)
        (root / f"task_{number}.py").write_text(text, encoding="utf-8")


def measure(scripts: int) -> float:
    """CPU seconds of a dry run of a project of so many scripts."""
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), scripts)
        gc.collect()
        started = time.process_time()
        run = session.run([Path(name)])
        spent = time.process_time() - started
    sites = len(run.result.decisions)
    each = 1000 * spent / scripts
    print(f"{scripts:>6} scripts {sites:>6} sites {spent:7.2f} s {each:7.0f} ms each")
    return spent


def main() -> int:
    sizes = sorted(int(argument) for argument in sys.argv[1:]) or list(SIZES)
    measure(1)  # imports and caches are not what is measured
    spent = [measure(scripts) for scripts in sizes]
    slow = spent[-1] / spent[0] > GROWTH * sizes[-1] / sizes[0]
    print("SLOW" if slow else "time is proportional to the scripts")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
