"""``python -m tests.fuzz --seconds 3600 --seed 1``: programs made by accident, judged answers."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from itertools import islice
from pathlib import Path

from tests.fuzz import judging, making


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="how long")
    parser.add_argument("--count", type=int, help="how many programs, at most")
    parser.add_argument("--seed", type=int, default=1, help="each makes programs of its own")
    parser.add_argument("--keep", type=Path, help="a folder for the programs with faults")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    tried = 0
    kinds: Counter[str] = Counter()
    for accident in islice(making.accidents(options.seed), options.count):
        if time.monotonic() > end:
            break
        tried += 1
        found = list(judging.faults(accident.text))
        kinds.update({kind for kind, _ in found})
        for kind, what in found:
            print(f"{tried:>6} {accident.name} ({accident.way}): {kind}: {what}", flush=True)
        if found and options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{tried:06}.py").write_text(accident.text, encoding="utf-8")
    print(f"{tried} programs, seed {options.seed}")
    for kind in judging.KINDS:
        print(f"{kinds[kind]:>6} {kind}")
    return int(bool(kinds))


if __name__ == "__main__":
    raise SystemExit(main())
