"""The tables of ``docs/attacks.md``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from tempfile import gettempdir

from tests.tools.documents import between
from tests.verify.attacks.attack import Answer

DOCUMENT = Path(__file__).parents[3] / "docs" / "attacks.md"
RESULTS = ("right", "wrong PASS", "right FAIL", "other cause", "other verdict")


def counted(found: Sequence[Answer]) -> str:
    """How many attacks of each class ended how."""
    lines = [f"| class | attacks | {' | '.join(RESULTS)} |", f"|---|{'--:|' * (1 + len(RESULTS))}"]
    classes = [(name, list(each)) for name, each in groupby(found, lambda a: a.attack.family)]
    for name, each in [*classes, ("all", list(found))]:
        numbers = [len(each), *(sum(a.result == result for a in each) for result in RESULTS)]
        lines.append(f"| {name} | {' | '.join(str(number or '') for number in numbers)} |")
    return "\n".join(lines)


def table(found: Sequence[Answer]) -> str:
    """Every attack, and what verify says of it."""
    lines = ["| class | the migration | result | what verify says |", "|---|---|---|---|"]
    for each in found:
        said = re.sub(rf"{re.escape(gettempdir())}/\S+?/\d+/", "", each.says)
        says = " ".join(f"{each.verdict}: {said}".split()).replace("|", "\\|")
        says = says if len(says) <= 160 else f"{says[:157]}..."
        kind = "wrong" if each.attack.wrong else "right"
        result = each.result if each.result == "right" else f"**{each.result}**"
        lines.append(f"| {each.attack.family} | {kind}: {each.attack.what} | {result} | {says} |")
    return "\n".join(lines)


def renew(found: Sequence[Answer]) -> None:
    """Write both into the document."""
    text = between("counted", DOCUMENT.read_text(encoding="utf-8"), counted(found))
    DOCUMENT.write_text(between("attacks", text, table(found)), encoding="utf-8")
