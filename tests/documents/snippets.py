"""The code and the commands that pages show."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.tools.documents import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "skills").rglob("*.md")),
]
FENCE = re.compile(r"(?ms)^( *)```([^\n`]*)\n(.*?)^\1```")


@dataclass(frozen=True)
class Snippet:
    """A block of code of a page; ``number`` counts those of the page."""

    page: Path
    number: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.number}"


def snippets(*languages: str) -> list[Snippet]:
    """The blocks of all pages in these languages."""
    return [s for page in PAGES for s in of_page(page) if s.language in languages]


def of_page(page: Path) -> Iterator[Snippet]:
    for number, block in enumerate(FENCE.finditer(page.read_text(encoding="utf-8")), 1):
        yield Snippet(page, number, block[2], textwrap.dedent(block[3]))


def commands(shell: str) -> list[list[str]]:
    """The words of every command of a script without loops, comments left out."""
    lines = shell.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each for each in words if each]


def mentioned() -> list[tuple[str, list[str]]]:
    """The commands that stand in the text of pages, each with the name of its page."""
    found = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for said in re.findall(r"`(fsdp-migrate [^`]+)`", text):
            if not re.search(r"[\[…]", said):
                found.append((page.name, shlex.split(said.replace("CODE", "FSDP101"))))
    return found
