"""``python -m tests.generated --count 5000 --seed 1``: make programs, and tell what is silent."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import chain, count, islice
from pathlib import Path

from tests.generated import asking, making

ROUNDS = 1000  # more than any seed takes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generated", description=__doc__)
    parser.add_argument("--count", type=int, default=5000, help="how many programs")
    parser.add_argument("--seed", type=int, default=1, help="each makes programs of its own")
    parser.add_argument("--keep", type=Path, help="a folder for the programs that are silent")
    parser.add_argument("--asking", action="store_true", help="ask hidden models for things")
    options = parser.parse_args()
    if options.asking:
        return _ask(options.count, options.seed)
    every = list(making.bases())
    made = silent = 0
    ways: Counter[str] = Counter()
    rounds = (making.cases(every, options.seed * ROUNDS + number) for number in count())
    for case in islice(chain.from_iterable(rounds), options.count):
        made += 1
        found = making.unsaid(case)
        if found:
            silent += 1
            ways[case.way] += 1
            print(case, *(f"    {each}" for each in found), sep="\n", flush=True)
            if options.keep:
                folder = options.keep / f"{made:05}"
                for path, text in case.files.items():
                    (folder / path).parent.mkdir(parents=True, exist_ok=True)
                    (folder / path).write_text(text, encoding="utf-8")
    print(*(f"{number:>5} {way}" for way, number in ways.most_common()), sep="\n")
    print(f"{made} programs from {len(every)}, seed {options.seed}: {silent} silent")
    return int(bool(silent))


def _ask(count: int, seed: int) -> int:
    questions = asking.chosen(count, seed)
    silent = [question for question in questions if not asking.is_said(question)]
    print(*silent, sep="\n")
    print(f"{len(questions)} programs, seed {seed}: {len(silent)} silent")
    return int(bool(silent))


if __name__ == "__main__":
    sys.exit(main())
