"""Classes that a setting is compared with: it may be each of them.

Beside ``CONFIG = {"model_cls": Net}``, ``if CONFIG["model_cls"] == Other`` says that whoever
changes the setting may write ``Other`` there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project


def compared(key: str, project: Project) -> Iterator[tuple[ast.expr, ast.expr, Module]]:
    """The dictionaries whose entry under a key is compared with something, and what that is."""
    for module in project.modules:
        if not module.mentions(key):
            continue
        parents = module.table.parents
        for string in module.table.strings:
            taken = parents[string]
            if string.value != key or not isinstance(taken, ast.Subscript):
                continue
            match parents[taken]:
                case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[other]) if (
                    left is taken
                ):
                    yield taken.value, other, module
