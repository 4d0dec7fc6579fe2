"""Lead imports of what is installed from the user's own tree into the copy that is run.

An editable install puts a folder of the tree on ``sys.path`` (by a ``.pth`` file), or has a finder
that knows it (setuptools). The program would import the code that lies there, on both sides the
same, and not that of the version that is judged.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def lead_into_copy(copy: str, trees: Sequence[str]) -> None:
    """Replace folders below one of ``trees`` by the same ones below ``copy``, if they are there."""

    def led(path: str) -> str:
        for tree in trees:
            inside = os.path.relpath(os.path.realpath(path), os.path.realpath(tree))
            there = os.path.normpath(os.path.join(copy, inside))
            if not inside.startswith(os.pardir) and os.path.exists(there):
                return there
        return path

    sys.path[:] = [led(path) if os.path.isabs(path) else path for path in sys.path]
    for name, module in list(sys.modules.items()):
        if not name.startswith("__editable__"):
            continue
        for place in ("MAPPING", "NAMESPACES"):  # of setuptools' finders
            known = getattr(module, place, {})
            for package, found in list(known.items()):
                known[package] = led(found) if isinstance(found, str) else [*map(led, found)]
