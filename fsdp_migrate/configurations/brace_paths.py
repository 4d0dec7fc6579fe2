"""MindSpeed-MM's paths of modules: dotted, with at most one pair of braces for numbers.

``decoder.layers.{0-3,5}.mlp`` stands for five modules, ``decoder.layers.{*}`` for all layers there
are. MindSpeed-MM itself warns of a path that fits nothing and goes on without it; here it is an
error.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

ALL = "*"
_BRACES = re.compile(r"(?P<before>[^{}]*)\{(?P<inside>[^{}]*)\}(?P<after>[^{}]*)")
_PART = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
_MOST = 100_000  # numbers in one pair of braces


class PathError(ValueError):
    """A path that is not of this form, or fits no module."""


def read(path: str) -> tuple[str, list[int] | None, str]:
    """What stands before the braces, the numbers in them, and what stands behind.

    The numbers are None where all are meant; a path without braces has none and no end.
    """
    if "{" not in path and "}" not in path:
        return path, [], ""
    match = _BRACES.fullmatch(path)
    if match is None:
        raise PathError(f"{path}: a path has one pair of braces at most")
    before, after = match["before"].rstrip("."), match["after"].lstrip(".")
    if not before:
        raise PathError(f"{path}: there is nothing before the braces")
    if match["inside"] == ALL:
        return before, None, after
    numbers: set[int] = set()
    for part in match["inside"].split(","):
        found = _PART.fullmatch(part)
        first, last = (found[1], found[2] or found[1]) if found is not None else ("", "")
        if not first or not int(first) <= int(last) < int(first) + _MOST:
            raise PathError(f"{path}: {part.strip() or 'nothing'} is neither a number nor a range")
        numbers |= set(range(int(first), int(last) + 1))
    return before, sorted(numbers), after


def expanded(path: str, modules: Collection[str]) -> list[str]:
    """The modules that a path stands for.

    Raises:
        PathError: one of them is not among ``modules``, or it is no such path.
    """
    before, numbers, after = read(path)
    if numbers is None:
        inside = re.compile(re.escape(before) + r"\.(\d+)")
        numbers = sorted(int(m[1]) for m in map(inside.fullmatch, modules) if m is not None)
        if not numbers:
            raise PathError(f"{path}: there are no numbered modules in {before}")
    names = [_joined(before, str(number), after) for number in numbers] or [before]
    for name in names:
        if name not in modules:
            raise PathError(f"{path}: the model has no {name}")
    return names


def compact(names: Iterable[str]) -> list[str]:
    """Paths that stand for all of ``names``, the largest groups that differ in one number first."""
    left = order = list(dict.fromkeys(names))
    paths: dict[str, str] = {}  # and the first name of each
    while left:
        groups: dict[tuple[str, str], list[str]] = {}
        for name in left:
            for key in _around_numbers(name):
                groups.setdefault(key, []).append(name)
        (before, after), group = max(
            groups.items(), key=lambda item: len(item[1]), default=((left[0], ""), left[:1])
        )
        if len(group) == 1:
            paths |= {name: name for name in left}
            break
        numbers = sorted(int(name[len(before) + 1 :].split(".")[0]) for name in group)
        paths[_joined(before, f"{{{_ranges(numbers)}}}", after)] = group[0]
        left = [name for name in left if name not in set(group)]
    return sorted(paths, key=lambda path: order.index(paths[path]))


def _around_numbers(name: str) -> Iterable[tuple[str, str]]:
    parts = name.split(".")
    for place in range(len(parts) - 1, 0, -1):
        if parts[place] == "0" or re.fullmatch(r"[1-9]\d*", parts[place]):
            yield ".".join(parts[:place]), ".".join(parts[place + 1 :])


def _ranges(numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))
