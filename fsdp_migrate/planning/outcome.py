"""How a site can end, and how messages name places. Light: reports without a site load it too."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """How a site ended. Every site has exactly one."""

    REWRITTEN = "rewritten"
    REVIEW = "review"
    LEFT = "left"


def place(path: str, line: int, cell: int = 0) -> str:
    """How messages name a line of a file, or of a cell of a notebook."""
    return f"{path}:cell {cell}:{line}" if cell else f"{path}:{line}"
