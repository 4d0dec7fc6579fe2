"""Reads attacks from the pages beside this file, a page for every class.

A page names the program at its top, and what is replaced for all, and then lists attacks, each
under a heading that says whether the migration is right or wrong. What is replaced stands in blocks
of ``diff``: in ``both`` versions, in ``before`` or in ``after``. The lines of one hunk, kept and
removed, stand in the program exactly once; ``@@`` divides hunks, and ``+++`` names a file other
than ``train.py``.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from tests.verify.attacks.attack import Attack
from tests.verify.programs import Replaced

_BLOCK = re.compile(r"```diff (both|before|after)\n(.*?)```\n", re.DOTALL)
_VALUE = re.compile(r"^- (\w+): (.*)$", re.MULTILINE)


def read(page: Path) -> tuple[Attack, ...]:
    """The attacks of a page."""
    head, *sections = page.read_text(encoding="utf-8").split("\n## ")
    title = head.partition("\n")[0].removeprefix("# ")
    return tuple(_attack(title, head, section) for section in sections)


def _attack(family: str, head: str, section: str) -> Attack:
    heading, _, body = section.partition("\n")
    kind, _, what = heading.partition(": ")
    assert kind in ("Wrong", "Right"), heading
    values: dict[str, Any] = dict(_VALUE.findall(_BLOCK.sub("", head + body)))
    values.setdefault("verdict", "fails" if kind == "Wrong" else "same")
    for name, words in (
        ("verdict", lambda text: text.split(", ")),
        ("cause", lambda text: text.split(" | ")),
        ("args", shlex.split),
        ("options", shlex.split),
    ):
        if name in values:
            values[name] = tuple(words(values[name]))
    blocks = _BLOCK.findall(head + body)
    sides = {
        side: tuple(
            change for name, text in blocks if name in ("both", side) for change in _replaced(text)
        )
        for side in ("before", "after")
    }
    return Attack(family=family, what=what, wrong=kind == "Wrong", **values, **sides)


def _replaced(text: str) -> list[Replaced]:
    """The hunks of a block."""
    found: list[Replaced] = []
    file, hunk = "train.py", ["", ""]
    for line in [*text.splitlines(keepends=True), "@@\n"]:
        if line.startswith("+++ "):
            file = line[4:].strip()
        elif line == "@@\n":
            found.append((file, hunk[0], hunk[1]))
            hunk = ["", ""]
        else:
            if line[0] != "+":
                hunk[0] += line[1:] or "\n"
            if line[0] != "-":
                hunk[1] += line[1:] or "\n"
    return found


ATTACKS = tuple(a for page in sorted(Path(__file__).parent.glob("*.md")) for a in read(page))
