"""Things of one name by what they turn out to be, each asked only until that is known for good.

Many things of a project have one name (``x.model = ...``, ``forward(x)``). Whoever looks for those
that concern one class or one function would ask each of them what it is, for every class and every
function: that is the square of their number. What is known for good is asked once, and looked up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Set
from typing import Generic, TypeVar

Item = TypeVar("Item")
Keys = Set[Hashable]


class SettledIndex(Generic[Item]):
    """The items of a name by their keys."""

    def __init__(
        self,
        named: Callable[[str], Iterable[Item]],
        keys: Callable[[Item], tuple[Keys, bool]],
    ) -> None:
        """``keys`` tells those of an item, and whether they are known for good."""
        self._named = named
        self._keys = keys
        self._settled: dict[str, dict[Hashable, dict[int, Item]]] = {}
        self._open: dict[str, dict[int, Item]] = {}

    def of(self, name: str, wanted: Keys) -> list[Item]:
        """The items of a name that have one of some keys, in their order."""
        if name not in self._open:
            self._open[name] = dict(enumerate(self._named(name)))
            self._settled[name] = defaultdict(dict)
        waiting, settled = self._open[name], self._settled[name]
        found: dict[int, Item] = {}
        for number, item in list(waiting.items()):  # asking one may ask for others
            keys, for_good = self._keys(item)
            if for_good:
                waiting.pop(number, None)
                for key in keys:
                    settled[key][number] = item
            elif not keys.isdisjoint(wanted):
                found[number] = item
        for key in wanted if len(wanted) < len(settled) else settled.keys() & wanted:
            found.update(settled.get(key, ()))
        return [found[number] for number in sorted(found)]
