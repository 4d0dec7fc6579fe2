"""Code that only some ranks run."""

from __future__ import annotations

import ast

from fsdp_migrate.names import FUNCTIONS
from fsdp_migrate.trace.project import Module

RANK_WORDS = ("rank", "is_main", "is_master", "main_process", "is_zero", "local_main")


def guard(node: ast.AST, module: Module) -> str | None:
    """The condition on the rank under which ``node`` runs within its function, as written."""
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return None
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            text = ast.unparse(parent.test)
            if mentions_rank(parent.test):
                return text
        child = parent
    return None


def mentions_rank(test: ast.expr) -> bool:
    """Whether a condition differs between ranks, judged by the names in it."""
    for node in ast.walk(test):
        name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
        if any(word in name.lower() for word in RANK_WORDS):
            return True
    return False
