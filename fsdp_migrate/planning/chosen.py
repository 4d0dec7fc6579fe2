"""Which rules the user asked for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Chosen:
    """Codes of rules or their beginnings. Without ``select`` all rules are asked for; what is in
    ``ignore`` is not reported, and what is in ``leave`` stays as it is."""

    select: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()
    leave: frozenset[str] = frozenset()

    def has(self, code: str) -> bool:
        """Whether what a rule says by itself, of no model, is wanted."""
        return is_selected(code, self.select, self.ignore | self.leave)


def is_selected(code: str, select: Collection[str], ignore: Collection[str]) -> bool:
    """Whether a rule's results are wanted; without ``select`` every rule's are."""
    chosen = not select or any(code.startswith(s) for s in select)
    return chosen and not any(code.startswith(s) for s in ignore)
