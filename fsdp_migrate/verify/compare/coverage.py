"""Names that two recordings have in common.

A comparison over an empty set finds no difference and would read as "equal": an optimizer built
before sharding leaves nothing to record, and that must not pass. So names are only ever compared
through :class:`Paired`, which cannot be empty; the other case is a type of its own that every
caller has to handle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Paired(Generic[T]):
    """What both sides have, at least one thing, and what only one has."""

    both: Mapping[str, tuple[T, T]]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.both:
            raise ValueError("a pairing without pairs")

    @property
    def complete(self) -> bool:
        """Whether nothing was left over on either side."""
        return not self.only_before and not self.only_after


@dataclass(frozen=True)
class NothingShared:
    """The two sides have nothing in common; ``before`` and ``after`` count what each has."""

    before: int
    after: int

    def __str__(self) -> str:
        if not self.before and not self.after:
            return "nothing was recorded on either side"
        return f"{self.before} names before and {self.after} after, none in common"


Coverage = Paired[T] | NothingShared


def pair(before: Mapping[str, T], after: Mapping[str, T]) -> Coverage[T]:
    """Match by name."""
    both = {name: (value, after[name]) for name, value in before.items() if name in after}
    if not both:
        return NothingShared(len(before), len(after))
    return Paired(
        both,
        tuple(name for name in before if name not in after),
        tuple(name for name in after if name not in before),
    )


def listed(names: tuple[str, ...] | list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
