"""How cost grows where it should not: ``python benchmarks/growth.py [copies] [large] [tangled]``.

*copies*: ``check`` on one, two, four and eight copies of the FSDP1 programs in ``fixtures/``, which
have nothing to do with each other. *large*: on all of ``fixtures/``, where what is left in one
program may concern all others. *tangled*: on the Python files of the installed torch less its own
FSDP, with one small FSDP1 program among them: nearly all files import each other, and hardly any
matters. Without arguments, all three. Each command runs as it would from the shell, in one process;
time is CPU time, memory the most that was held at once.

Bars: copies grow linearly within 20 %, in time and in memory, what a run takes for itself left out;
a site of the large repository takes at most twice as long as one of the copies; the tangled tree
takes 6 ms for a thousand lines. Growth is fitted as a power of the number of copies, and printed.
A command that takes ``LIMIT`` seconds is stopped, and misses its bar.
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from scale import PROJECT
from shell import Cost, OutOfTime, run

FIXTURES = Path(__file__).parents[1] / "fixtures"
PROGRAMS = ("programs", "systems", "demo")
COPIES = (1, 2, 4, 8)
GROWTH = 1.2  # times as much for each copy of the most as for the only one
FOR_A_KLOC = 0.006  # seconds
FOR_A_SITE = 2.0  # times what a site of the copies takes
LIMIT = 300  # seconds of CPU
CHECK = [sys.executable, "-m", "fsdp_migrate", "check", "--jobs", "1"]


def check(root: Path) -> Cost | None:
    """What ``check`` costs; None if it takes too long."""
    try:
        return run([*CHECK, "."], root, limit=LIMIT)
    except OutOfTime:
        return None


def sites(root: Path) -> int:
    """How many sites ``check`` finds."""
    answer = subprocess.run(
        [*CHECK, "--format", "json", "."], cwd=root, capture_output=True, check=False
    )
    return len(json.loads(answer.stdout)["sites"])


def small(root: Path) -> Cost:
    """What a run takes for itself, as on one program of three files."""
    for name, text in PROJECT.items():
        (root / name).write_text(text, encoding="utf-8")
    check(root)  # bytecode is not what is measured
    found = check(root)
    assert found is not None
    return found


def exponent(numbers: list[int], amounts: list[float]) -> float:
    """The power of the numbers by which amounts grow: the slope of a line through their logarithms,
    by least squares."""
    x, y = [math.log(n) for n in numbers], [math.log(max(a, 1e-9)) for a in amounts]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def copies(scratch: Path) -> tuple[bool, float]:
    """Whether cost grows faster than the copies, and what each site of the most takes, in
    seconds."""
    (scratch / "small").mkdir()
    start = small(scratch / "small")
    print(f"a run for itself: {start.cpu:.2f} s CPU, {start.memory >> 20} MB")
    root = scratch / "copies"
    costs: list[Cost] = []
    for number in COPIES:
        for copy in range(number):
            for name in PROGRAMS:
                target = root / f"copy_{copy}" / name
                if not target.exists():
                    shutil.copytree(FIXTURES / name, target)
        cost = check(root)
        if cost is None:
            print(f"{number} copies: more than {LIMIT} s CPU  SLOW")
            return True, math.inf
        costs.append(cost)
        each = (cost.cpu - start.cpu) / number
        print(
            f"{number:>3} copies {cost.cpu:7.2f} s CPU {cost.memory >> 20:>5} MB {each:6.2f} s each"
        )
    slow = False
    spent = [cost.cpu - start.cpu for cost in costs]
    held = [float(cost.memory - start.memory) for cost in costs]
    for what, amounts in (("time", spent), ("memory", held)):
        missed = amounts[-1] / amounts[0] > GROWTH * COPIES[-1] / COPIES[0]
        power = exponent(list(COPIES), amounts)
        print(f"{what} grows as copies ** {power:.2f}{'  SLOW' if missed else ''}")
        slow = slow or missed
    return slow, spent[-1] / sites(root)


def large(scratch: Path, each: float) -> bool:
    """Whether a site of all fixtures takes much longer than one of the copies, ``each`` seconds."""
    root = scratch / "large"
    shutil.copytree(FIXTURES, root)
    cost = check(root)
    if cost is None:
        print(f"all fixtures: more than {LIMIT} s CPU  SLOW")
        return True
    number = sites(root)
    slow = cost.cpu / number > FOR_A_SITE * each
    print(
        f"all fixtures: {cost.cpu:.1f} s CPU, {cost.memory >> 20} MB, {number} sites, "
        f"{1000 * cost.cpu / number:.1f} ms each (copies: {1000 * each:.1f})"
        f"{'  SLOW' if slow else ''}"
    )
    return slow


def tangled(scratch: Path) -> bool:
    """Whether a tree of which hardly anything matters takes longer than it may."""
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("the tangled tree is made of an installed torch, and there is none")
    torch = Path(found.submodule_search_locations[0])
    root = scratch / "tangled"
    lines = files = 0
    for path in torch.rglob("*.py"):
        inside = path.relative_to(torch)
        if inside.parts[:2] == ("distributed", "fsdp"):
            continue
        target = root / "torch" / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        target.write_bytes(data)
        lines, files = lines + data.count(b"\n"), files + 1
    (root / "program").mkdir()
    for name, text in PROJECT.items():
        (root / "program" / name).write_text(text, encoding="utf-8")
    bar = FOR_A_KLOC * lines / 1000
    cost = check(root)
    shown = f"tangled, {files:,} files, {lines:,} lines: "
    if cost is None:
        print(f"{shown}more than {LIMIT} s CPU (bar {bar:.1f} s)  SLOW")
        return True
    slow = cost.cpu > bar
    each = 1e6 * cost.cpu / lines
    print(
        f"{shown}{cost.cpu:.1f} s CPU, {each:.1f} ms for a thousand lines "
        f"(bar {1000 * FOR_A_KLOC:.0f}), {cost.memory >> 20} MB{'  SLOW' if slow else ''}"
    )
    return slow


def main() -> int:
    asked = sys.argv[1:] or ["copies", "large", "tangled"]
    slow = False
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if {"copies", "large"} & {*asked}:
            slow, each = copies(scratch)
            if "large" in asked:
                slow = large(scratch, each) or slow
        if "tangled" in asked:
            slow = tangled(scratch) or slow
    print("SLOW" if slow else "all bars hold")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
