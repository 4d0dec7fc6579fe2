"""Code that runs under version 1 of a library's own setting alone: ``plugin.fsdp_version == 1``.

A library that supports both versions (trl) has a branch for each. Where another library wraps the
models, the one for version 1 serves those who have not changed their settings: it stays as it is,
and says nothing about what becomes of the settings.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.syntax.expressions import last_name

NAME = "fsdp_version"
CALLS = 3  # functions that call each other, at most
SAID = "it is for version 1 alone, as {} says"
HELP = (
    "nothing is to be done here: it serves those whose settings say version 1, and version 2 has "
    "a branch of its own"
)


def condition(node: ast.AST, module: Module, project: Project, calls: int = CALLS) -> str:
    """The condition by which a node runs under version 1 alone, itself or whoever calls its
    function; empty where there is none."""
    table = module.table
    child = node
    for parent in table.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test:
            in_body = child is parent.body or child in _block(parent.body)
            if _holds_for_1_alone(parent.test, in_body=in_body):
                return ast.unparse(parent.test) if in_body else f"not {ast.unparse(parent.test)}"
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return _of_callers(parent, project, calls - 1) if calls else ""
        child = parent
    return ""


def _block(body: ast.expr | list[ast.stmt]) -> list[ast.stmt]:
    return body if isinstance(body, list) else []


def _holds_for_1_alone(test: ast.expr, *, in_body: bool) -> bool:
    if in_body and isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_holds_for_1_alone(each, in_body=True) for each in test.values)
    match test:
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=int(value))]) if (
            not isinstance(left, ast.Call) and last_name(left) == NAME
        ):
            wanted = ast.Eq if (value == 1) == in_body else ast.NotEq
            return value in {1, 2} and isinstance(op, wanted)
    return False


def _of_callers(
    function: ast.FunctionDef | ast.AsyncFunctionDef, project: Project, calls: int
) -> str:
    """The condition of every call of a function's name, in functions of another one."""
    said = ""
    for other in project.modules:
        for call in other.table.calls_by_name.named(function.name):
            around = other.table.ancestors(call)
            if any(getattr(each, "name", "") == function.name for each in around):
                continue
            said = condition(call, other, project, calls)
            if not said:
                return ""
    return said
