"""Which files of the project the program imported, and which it imported from somewhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator


def imported(
    tree: str, sources: Iterable[str], program: str = ""
) -> tuple[list[str], list[list[str]]]:
    """The files among ``sources`` that modules of this process came from; and for those whose
    module came from a place outside of ``tree``, the file and that place.

    ``sources`` are paths of Python files below ``tree``, ``program`` the file that was started.
    """
    known = set(sources)
    homes = {name: source for source in known for name in _names(source, known)}
    roots = tuple(os.path.join(each, "") for each in {tree, os.path.realpath(tree)})
    inside: set[str] = set()
    outside: dict[str, str] = {}
    files = [(name, getattr(module, "__file__", None)) for name, module in sys.modules.items()]
    for name, given in [("__main__", program), *files]:
        if not isinstance(given, str) or not given:
            continue
        file = os.path.abspath(given)
        root = next((root for root in roots if file.startswith(root)), None)
        if root is not None:
            inside.add(file.removeprefix(root))
        elif name in homes:
            outside[homes[name]] = file
    return sorted(inside & known), [[source, outside[source]] for source in sorted(outside)]


def _names(source: str, known: set[str]) -> Iterator[str]:
    """The dotted names by which a file can be imported: from folders that are no packages."""
    parts = source.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    for start in range(len(parts)):
        if "/".join([*parts[:start], "__init__.py"]) not in known or not start:
            yield ".".join(parts[start:])
