"""How long a verdict takes: ``python benchmarks/verdict.py [NAME ...]``, from the shell.

Against the two plain runs that someone would make by hand, of the original and of the migrated
program, each to its end, under torchrun or as it starts itself. Taken in turn, the best of a few.
FSDP1 does not train without a GPU by itself: a plain run is helped as ``verify`` helps it, and one
that fails ends the benchmark.

Bar: at most 1.5 times the wall time of the two.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import shell

BAR = 1.5
RUNS = 3
FIXTURES = Path(__file__).parents[1] / "fixtures"
ON_CPU = Path(__file__).parent / "on_cpu"
PACKAGE = Path(__file__).parents[1]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


@dataclass(frozen=True)
class Program:
    """A program of the fixtures; without an ``after`` beside it, the tool migrates it."""

    name: str
    folder: str
    args: tuple[str, ...] = ()
    launch: tuple[str, ...] = TORCHRUN


PROGRAMS = (
    Program("demo", "demo", ("--steps", "20")),
    Program("spawn", "programs/spawned", launch=()),
    Program("bf16", "demo", ("--steps", "20", "--precision", "bf16")),
    Program("compile", "rewriting/wrapped", ("--kind", "compiled")),
)


def sides(program: Program, room: Path) -> list[Path]:
    """Copies of the original and of the migrated program."""
    home = FIXTURES / program.folder
    before, after = room / "before", room / "after"
    shutil.copytree(home / "before" if (home / "before").exists() else home, before)
    if (home / "after").exists():
        shutil.copytree(home / "after", after)
    else:
        shutil.copytree(before, after)
        rewrite = [sys.executable, "-m", "fsdp_migrate", "rewrite", "--allow-dirty", str(after)]
        env = {**shell.ENVIRONMENT, "FSDP_MIGRATE_STATE": str(room / "state")}
        subprocess.run(rewrite, env=env, check=True, capture_output=True)
    return [before, after]


def measured(program: Program, room: Path) -> tuple[shell.Cost, shell.Cost]:
    """The two plain runs together, and the verdict."""
    trees = sides(program, room)
    plain = []
    for tree in trees:
        run = shutil.copytree(tree, room / f"plain-{tree.name}")
        command = [sys.executable, *program.launch, "train.py", *program.args]
        plain.append(shell.run(command, run, may_end_with=(0,), paths=[ON_CPU, PACKAGE]))
    verify = [sys.executable, "-m", "fsdp_migrate", "verify", "train.py"]
    verify += ["--before", str(trees[0]), "--after", str(trees[1]), "--", *program.args]
    return (
        shell.Cost(
            sum(each.wall for each in plain),
            sum(each.cpu for each in plain),
            max(each.memory for each in plain),
        ),
        shell.run(verify, room),
    )


def main(names: Sequence[str]) -> int:
    print("| program | plain runs, s wall | s CPU | verify, s wall | s CPU | times as long |")
    print("|---|--:|--:|--:|--:|--:|")
    good = True
    for program in PROGRAMS:
        if names and program.name not in names:
            continue
        taken = []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as room:
                taken.append(measured(program, Path(room)))
        plain, verdict = (
            min(each, key=lambda cost: cost.wall) for each in zip(*taken, strict=True)
        )
        times = verdict.wall / plain.wall
        good = good and times <= BAR
        print(
            f"| {program.name} | {plain.wall:.1f} | {plain.cpu:.1f} | {verdict.wall:.1f} "
            f"| {verdict.cpu:.1f} | {times:.2f} |",
            flush=True,
        )
    print(f"bar: at most {BAR} times: {'holds' if good else 'MISSED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
