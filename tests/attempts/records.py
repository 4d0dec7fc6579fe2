"""What came of programs that take a minute each, kept so that a run can go on where it stopped.

A command that measures many programs keeps a file of JSON for each in ``build/attempts/``. What is
there is not measured again, unless ``--again`` asks for it. The table in ``docs/loop.md`` is
renewed with all that are kept.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.tools.documents import ROOT, between

FOLDER = ROOT / "build" / "attempts"
DOCUMENT = ROOT / "docs" / "loop.md"
Record = dict[str, Any]


def asked(
    command: str, about: str | None, arguments: Sequence[str], *, sampled: bool = False
) -> argparse.Namespace:
    """The words that choose programs, and whether they are measured again; with ``sampled``, which
    sample of them, and whether each is measured alone."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=about)
    parser.add_argument("words", nargs="*", help="only programs whose names hold one of them")
    parser.add_argument("--again", action="store_true", help="measure what is kept once more")
    if sampled:
        parser.add_argument("--sample", type=int, metavar="SEED", help="one call of each fixture")
        parser.add_argument("--alone", action="store_true", help="without a verify after each")
    return parser.parse_args(arguments)


def chosen(names: Sequence[str], words: Sequence[str]) -> list[str]:
    return [name for name in names if not words or any(word in name for word in words)]


def measured(
    table: str, names: Sequence[str], measure: Callable[[str], Record], *, again: bool
) -> Iterator[tuple[str, Record]]:
    """The records of programs, one after the other; those that are not kept are made."""
    for name in names:
        path = place(table, name)
        if again or not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            record = {**measure(name), "revision": _revision()}
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        yield name, json.loads(path.read_text(encoding="utf-8"))


def kept(table: str, names: Sequence[str]) -> dict[str, Record]:
    """The records that there are."""
    paths = {name: place(table, name) for name in names}
    return {
        name: json.loads(path.read_text(encoding="utf-8"))
        for name, path in paths.items()
        if path.is_file()
    }


def renew(table: str, lines: Sequence[str]) -> None:
    """Write the lines into the document, between the markers of the table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(between(table, text, "\n".join(lines)), encoding="utf-8")


def revisions(records: Sequence[Record]) -> str:
    """Which versions of the tool the records were made with."""
    found = dict.fromkeys(record["revision"] for record in records)
    return f"Measured at {', '.join(found)}."


def row(*cells: object) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def place(table: str, name: str) -> Path:
    """Where the record of a program is kept."""
    return FOLDER / table / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name).strip('-')}.json"


def _revision() -> str:
    """The commit, with a plus where code that counts was changed since."""
    told = [
        subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for words in (
            ("rev-parse", "--short", "HEAD"),
            ("status", "--porcelain", "--", "fsdp_migrate", "rules", "fixtures"),
        )
    ]
    return told[0].strip() + ("+" if told[1].strip() else "")
