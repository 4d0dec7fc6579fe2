"""``python -m tests.ruler record DIR`` and ``python -m tests.ruler compare DIR``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.ruler import __doc__ as about
from tests.ruler import inputs, record


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ruler", description=about)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("directory", metavar="DIR", type=Path, help="where the record is kept")
    parser.add_argument("--only", metavar="PATTERN", help="inputs whose names begin like this")
    parser.add_argument("--jobs", metavar="N", type=int, default=os.cpu_count(), help="processes")
    asked = parser.parse_args(arguments)
    directory = asked.directory.resolve()
    only = asked.only or (record.about(directory)["only"] if asked.what == "compare" else None)
    every, notes = inputs.every(directory, only)
    for note in notes:
        print(f"note: {note}")
    if not every:
        sys.exit(f"no input's name begins with {only!r}")
    if asked.what == "record":
        print(record.record(directory, every, only=only, jobs=asked.jobs).table())
        return 0
    compared = record.compare(directory, every, only=only, jobs=asked.jobs)
    print(compared.clock.table())
    for name in compared.missing:
        print(f"{name}: is recorded and was not compared")
    for name, count in sorted(compared.different.items()):
        print(f"{name}: {count} differences")
    print(compared.verdict)
    return 0 if compared.equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
