"""``python -m tests.verify.attacks`` attacks verify and renews the tables in ``docs/attacks.md``;
with words after it, only the attacks whose names hold one of them, and nothing is written."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.tools.documents import between
from tests.verify.attacks.attack import Answer, Attack, answer
from tests.verify.attacks.pages import ATTACKS
from tests.verify.programs import warm_server

DOCUMENT = Path(__file__).parents[3] / "docs" / "attacks.md"
RESULTS = ("right", "wrong PASS", "right FAIL", "other cause", "other verdict")


def answers(attacks: Sequence[Attack]) -> list[Answer]:
    """One after the other, each told as it is answered."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with warm_server(sys.executable, folder) as server:
            for number, attack in enumerate(attacks):
                (folder / str(number)).mkdir()
                found.append(answer(attack, folder / str(number), server))
                print(f"{found[-1].result:<14} {attack}", flush=True)
                if found[-1].result != "right":
                    print(f"    {found[-1].verdict}: {found[-1].says}", flush=True)
    return found


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
        says = " ".join(f"{each.verdict}: {each.says}".split()).replace("|", "\\|")
        says = says if len(says) <= 160 else f"{says[:157]}..."
        kind = "wrong" if each.attack.wrong else "right"
        result = each.result if each.result == "right" else f"**{each.result}**"
        lines.append(f"| {each.attack.family} | {kind}: {each.attack.what} | {result} | {says} |")
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    chosen = [a for a in ATTACKS if not words or any(word in str(a) for word in words)]
    found = answers(chosen)
    print(counted(found))
    if not words:
        text = DOCUMENT.read_text(encoding="utf-8")
        text = between("counted", text, counted(found))
        DOCUMENT.write_text(between("attacks", text, table(found)), encoding="utf-8")
    return int(any(each.result != "right" for each in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
