"""How time grows with the callers of a class that keeps what it gets: ``benchmarks/reasons.py``.

Makes projects of the given numbers of functions (150, 300 and 600 without arguments) that nothing
calls, each of which gives its own parameter to one class: what the class keeps, and what is asked
of it, is unknown for as many reasons at one place. What comes out of such objects is asked for its
parameters and its state in as many places again as the class has methods, which are always the
same number. Trees of that shape, tests of a library of wrappers, did not end.

Bar: twice the functions take no more than 2.2 times the CPU time, as fitted over all sizes.
"""

from __future__ import annotations

import gc
import math
import sys
import tempfile
import time
from pathlib import Path

from scale import PROJECT

from fsdp_migrate.cli import session

SIZES = (150, 300, 600)
GROWTH = 2.2  # of twice the functions
METHODS = 12
KEEPER = """\
from helpers import prepared


class Keeper:
    def __init__(self, base):
        self.base = base
        self.before = self.base.prepare

"""
METHOD = """\
    def method_{number}(self, batch):
        found = prepared(self.base.prepare(batch), self.method_{before}(batch), self.before)
        for each in found.parameters():
            each.grad = None
        self.base.prepare = self.before
        return found.state_dict() if batch is None else self.base.generate(batch, found)

"""
TRAIN = """\
from keeper import Keeper
from model import Net
from sharding import sharded

net = sharded(Net(64, 2))
keeper = Keeper(net)
keeper.method_0(None)
"""
FILE = """\
from keeper import Keeper
from model import Net
from sharding import sharded


def test_sharded():
    Keeper(sharded(Net(64, 2))).method_0(None)

"""
TEST = """\
def test_{number}(model_{number}, batch):
    keeper = Keeper(model_{number})
    outputs = keeper.method_{method}(batch)
    return outputs

"""
A_FILE = 10  # functions


def make(root: Path, functions: int) -> None:
    methods = [METHOD.format(number=each, before=(each - 1) % METHODS) for each in range(METHODS)]
    files = {
        "model.py": PROJECT["model.py"],
        "sharding.py": PROJECT["sharding.py"],
        "keeper.py": KEEPER + "".join(methods),
        "train.py": TRAIN,
    }
    for first in range(0, functions, A_FILE):
        tests = [
            TEST.format(number=each, method=each % METHODS)
            for each in range(first, min(first + A_FILE, functions))
        ]
        files[f"test_{first}.py"] = "\n".join([FILE, *tests])
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")


def measure(functions: int) -> float:
    """CPU seconds of a dry run of a project of so many functions."""
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), functions)
        gc.collect()
        started = time.process_time()
        run = session.run([Path(name)])
        spent = time.process_time() - started
    sites = len(run.result.decisions)
    each = 1000 * spent / functions
    print(f"{functions:>6} functions {sites:>6} sites {spent:7.2f} s {each:7.1f} ms each")
    return spent


def growth(sizes: list[int], spent: list[float]) -> float:
    """What twice the size makes of the time: by the line that fits their logarithms best."""
    points = [(math.log2(size), math.log2(each)) for size, each in zip(sizes, spent, strict=True)]
    middle = [sum(axis) / len(points) for axis in zip(*points, strict=True)]
    rise = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
    return float(2 ** (rise / sum((x - middle[0]) ** 2 for x, _ in points)))


def main() -> int:
    sizes = sorted(int(argument) for argument in sys.argv[1:]) or list(SIZES)
    measure(10)  # imports and caches are not what is measured
    found = growth(sizes, [measure(size) for size in sizes])
    print(f"twice the functions: {found:.2f} times the time")
    print("SLOW" if found > GROWTH else "that is what it may be")
    return int(found > GROWTH)


if __name__ == "__main__":
    sys.exit(main())
