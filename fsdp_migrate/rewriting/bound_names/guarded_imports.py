"""Imports that cannot fail where migrated code runs, and what is done if they do."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence

FAILED_IMPORTS = frozenset(("ImportError", "ModuleNotFoundError", "Exception", "BaseException"))


def surely_imports(body: Sequence[ast.stmt]) -> bool:
    """Whether statements only import what is installed wherever migrated code runs, and set flags
    such as ``HAVE_TORCH = True``."""

    def known(name: str) -> bool:
        top = name.split(".", maxsplit=1)[0]
        return top == "torch" or top in sys.stdlib_module_names

    for node in body:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if not is_support(module) and (node.level or not known(module)):
                return False
        elif isinstance(node, ast.Import):
            if not all(known(alias.name) for alias in node.names):
                return False
        elif not _sets_flag(node):
            return False
    return True


def _sets_flag(node: ast.stmt) -> bool:
    """Whether a statement is as plain as ``HAVE_TORCH = True``, which cannot fail."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Constant)
        and all(isinstance(target, ast.Name) for target in node.targets)
    )


def is_support(module: str) -> bool:
    """Whether a module is a support file, which imports torch alone."""
    return module.rpartition(".")[2].startswith("fsdp2_support")


def only_imports_fail(handler: ast.ExceptHandler) -> bool:
    """Whether a handler is for imports that failed."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return all(c is None or (isinstance(c, ast.Name) and c.id in FAILED_IMPORTS) for c in caught)
