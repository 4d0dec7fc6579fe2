"""How far a run is, for whoever wants to show it.

One run at a time is shown. Nothing is printed here, and noting it costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass
class Progress:
    """A phase, how many of how many are done, and what is being done."""

    phase: str = ""
    done: int = 0
    every: int = 0
    name: str = ""

    def __str__(self) -> str:
        if not self.every:
            return self.phase
        return f"{self.phase} {self.done + 1} of {self.every}: {self.name}"


now = Progress()


def through(phase: str, items: Collection[Item], names: Collection[str] = ()) -> Iterator[Item]:
    """``items``, each noted while it is worked at."""
    said = iter(names or map(str, items))
    try:
        for number, (item, name) in enumerate(zip(items, said, strict=False)):
            now.phase, now.done, now.every, now.name = phase, number, len(items), name
            yield item
    finally:
        now.phase, now.every = "", 0
