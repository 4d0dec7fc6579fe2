"""What a command says about its options, each of them once: as an annotation of a field.

A command takes a dataclass whole, and ``cli/parser.py`` makes the command line of it::

    @dataclass(frozen=True, kw_only=True)
    class Greet:
        name: Annotated[str | None, argument("NAME", "who is greeted")] = None
        times: Annotated[int, option("--times", metavar="N", read=number(int, 1), help="...")] = 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, get_type_hints


def unchanged(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Option:
    """An option, or an argument: that has no names. A switch has no metavar."""

    names: tuple[str, ...]
    help: str
    metavar: str | None = None
    read: Callable[[Any], Any] = unchanged
    """Makes the value of the word: of True or False for a switch, of a list if it is repeated.
    It raises ValueError, whose message is shown with the option's name."""
    repeated: bool = False


def option(
    *names: str,
    help: str,
    metavar: str | None = None,
    read: Callable[[Any], Any] = unchanged,
    repeated: bool = False,
) -> Option:
    return Option(names, help, metavar, read, repeated)


def argument(
    metavar: str, help: str, *, read: Callable[[Any], Any] = unchanged, repeated: bool = False
) -> Option:
    return Option((), help, metavar, read, repeated)


def options_of(kind: type) -> Iterator[tuple[Any, Option]]:
    """The fields of a dataclass that are options, in the order of the help text."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        for said in getattr(hints[field.name], "__metadata__", ()):
            yield field, said


def number(kind: type, low: float = float("-inf"), high: float = float("inf")) -> Any:
    """A reader of numbers in a range."""

    def read(given: str) -> Any:
        try:
            value = kind(given)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise ValueError(f"{given!r} is not {what}") from None
        if not low <= value <= high:
            raise ValueError(f"{given} is not between {low:g} and {high:g}")
        return value

    return read


def one_of(*allowed: str) -> Callable[[str], str]:
    """A reader of words of which there are few."""

    def read(given: str) -> str:
        if given not in allowed:
            raise ValueError(f"{given!r} is none of {', '.join(allowed)}")
        return given

    return read
