"""How time and memory grow with a tree: ``python benchmarks/scale.py [FILES ...]``.

Makes trees of the given numbers of files (5,000, 20,000 and 100,000 without arguments): plain
Python files of a hundred lines, and one in a thousand a small project that uses FSDP1. Each command
runs as it would from the shell; a process that walks the tree and reads every Python file is the
measure. Wall and CPU time are of the command with all its processes, memory is of the largest one.

Bars: from the smallest tree to the largest, CPU time grows no faster than the number of bytes (a
quarter more is allowed for what is noise); without FSDP1, memory does not grow by more than 1 KB
for a file (their paths), whatever is in them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from shell import Cost, run

SIZES = (5_000, 20_000, 100_000)
EVERY = 1_000  # files for one project that uses FSDP1
GROWTH = 1.25
FOR_A_FILE = 1024  # bytes
COLUMNS = "{:>8}{:>9}{:>7}{:<2}{:<20}{:>9}{:>9}{:>8}{:>9}"

PLAIN = '''"""What part {number} of the pipeline does with its records."""

import json
import os


class Part{number}:
    def __init__(self, path, limit=100):
        self.path = path
        self.limit = limit

'''
METHOD = '''    def step_{index}(self, records):
        """Keep the records of this step that are worth keeping."""
        kept = []
        for record in records:
            if record.get("step") == {index} and len(kept) < self.limit:
                kept.append(json.dumps(record, sort_keys=True))
        return os.linesep.join(kept)

'''
PROJECT = {
    "model.py": """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Net(nn.Module):
    def __init__(self, size, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(size) for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x
""",
    "sharding.py": """\
import functools

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from model import Block


def sharded(net):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return FSDP(
        net,
        auto_wrap_policy=policy,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        device_id=torch.cuda.current_device(),
        use_orig_params=True,
    )
""",
    "train.py": """\
import torch

from model import Net
from sharding import sharded


def main(batches):
    net = sharded(Net(64, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for batch in batches:
        loss = net(batch).square().mean()
        loss.backward()
        net.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
}
READ = """\
import os, sys
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        if name.endswith(".py"):
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                file.read()
"""


def make(root: Path, files: int, *, projects: bool) -> int:
    """A tree of ``files`` files; the bytes in it."""
    size = 0
    for number in range(files):
        directory = root / f"area_{number // 2500}" / f"package_{number // 50}"
        if number % 50 == 0:
            directory.mkdir(parents=True)
        text = PLAIN.format(number=number) + "".join(
            METHOD.format(index=index) for index in range(11)
        )
        size += (directory / f"part_{number}.py").write_text(text, encoding="utf-8")
        if projects and number % EVERY == 0:
            project = root / f"area_{number // 2500}" / f"project_{number // EVERY}"
            project.mkdir()
            for name, content in PROJECT.items():
                size += (project / name).write_text(content, encoding="utf-8")
    return size


def measure(files: int, *, projects: bool) -> tuple[int, dict[str, Cost]]:
    """The bytes of a tree, and what each command costs on it."""
    tool = [sys.executable, "-m", "fsdp_migrate"]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    commands = {
        "walk and read": [sys.executable, "-c", READ, "."],
        "check --jobs 1": [*tool, "check", "--jobs", "1", "."],
        f"check --jobs {cores}": [*tool, "check", "--jobs", str(cores), "."],
    }
    if projects:
        commands["rewrite --jobs 1"] = [*tool, "rewrite", "--dry-run", "--jobs", "1", "."]
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        size = make(root, files, projects=projects)
        run(commands["walk and read"], root)  # from memory, for all alike
        costs = {label: run(command, root) for label, command in commands.items()}
    kind = " +" if projects else ""
    for label, cost in costs.items():
        ratio = cost.cpu / costs["walk and read"].cpu
        print(
            COLUMNS.format(
                files,
                size >> 20,
                kind,
                "",
                label,
                f"{cost.wall:.2f}",
                f"{cost.cpu:.2f}",
                f"{ratio:.1f}",
                cost.memory >> 20,
            ),
            flush=True,
        )
    return size, costs


def main() -> int:
    sizes = sorted(int(argument) for argument in sys.argv[1:]) or list(SIZES)
    print(COLUMNS.format("files", "MB", "FSDP1", "", "", "wall s", "CPU s", "times", "peak MB"))
    slow = False
    for projects in (False, True):
        measured = [measure(files, projects=projects) for files in sizes]
        (small, first), (large, last) = measured[0], measured[-1]
        for label in first if len(sizes) > 1 else ():
            grown = last[label].cpu / first[label].cpu
            limit = GROWTH * large / small
            if grown > limit:
                print(
                    f"{label}: {grown:.1f} times the time for {large / small:.1f} times the bytes"
                )
                slow = True
            more = last[label].memory - first[label].memory
            if not projects and more > FOR_A_FILE * (sizes[-1] - sizes[0]):
                print(f"{label}: {more >> 20} MB more memory for the larger tree")
                slow = True
    print("SLOW" if slow else "time is proportional to the tree, memory is not")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
