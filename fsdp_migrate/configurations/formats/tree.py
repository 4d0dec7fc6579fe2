"""Values of YAML and JSON with their places in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.configurations.formats.text import Span
from fsdp_migrate.configurations.settings import Value


@dataclass(eq=False)
class Node:
    start: int
    end: int  # of its last character that is no comment and no white space
    kept: str = ""  # why it cannot be edited: an anchor, an alias, a tag


@dataclass(eq=False)
class Scalar(Node):
    value: Value = None
    quote: str = ""  # what it is written in
    unknown: str = ""  # why the value is not known


@dataclass(eq=False)
class Sequence(Node):
    items: list[Node] = field(default_factory=list)


@dataclass(eq=False)
class Pair:
    key: str
    at: Span  # of the key
    value: Node
    quote: str = ""

    @property
    def end(self) -> int:
        return max(self.value.end, self.at.end + 1)


@dataclass(eq=False)
class Mapping(Node):
    pairs: list[Pair] = field(default_factory=list)
    flow: bool = False  # in braces
    odd: str = ""  # a key that is none of ours: a list, a merge

    def get(self, key: str) -> Pair | None:
        return next((pair for pair in self.pairs if pair.key == key), None)

    def below(self, key: str) -> Mapping | None:
        """The mapping that is the value of a key."""
        pair = self.get(key)
        return pair.value if pair is not None and isinstance(pair.value, Mapping) else None

    def repeated(self) -> Pair | None:
        """The first pair whose key stands there already."""
        seen: set[str] = set()
        for pair in self.pairs:
            if pair.key in seen:
                return pair
            seen.add(pair.key)
        return None


def mappings(node: Node, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Mapping]]:
    """Every mapping in a value with the keys that lead to it, the outer first."""
    waiting: list[tuple[tuple[str, ...], Node]] = [(path, node)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, Mapping):
            yield path, node
            waiting += [((*path, p.key), p.value) for p in reversed(node.pairs)]
        elif isinstance(node, Sequence):
            waiting += [((*path, "[]"), item) for item in reversed(node.items)]


def scalars(node: Node) -> Iterator[Scalar]:
    """Every scalar in a value, keys not counted."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Scalar):
            yield node
        elif isinstance(node, Sequence):
            waiting += reversed(node.items)
        elif isinstance(node, Mapping):
            waiting += [p.value for p in reversed(node.pairs)]


def value_of(node: Node) -> tuple[Value, str]:
    """What a value is, and why it is not known if it is not."""
    match node:
        case Scalar():
            return node.value, node.unknown
        case Sequence():
            found = [value_of(item) for item in node.items]
            unknown = next(filter(None, (why for _, why in found)), "")
            return tuple(value for value, _ in found), unknown
    return None, "it is a block of its own"


def plain(node: Node) -> object:
    """The value without places, to compare two texts by; entries by their keys."""
    match node:
        case Mapping():
            return sorted(((p.key, plain(p.value)) for p in node.pairs), key=lambda pair: pair[0])
        case Sequence():
            return tuple(plain(item) for item in node.items)
        case Scalar():
            return (type(node.value).__name__, node.value)
    return None
