"""Code that goes another way, and says nothing, where an object has not an attribute of FSDP1's.

``if hasattr(module, "_handle"): ...`` does what it is for on FSDP1's modules. An FSDP2 module is
passed over without an error, where a plain ``module._handle`` would end the program.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import model_attributes, model_values
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study

_CATCHING = frozenset({"", "AttributeError", "BaseException", "Exception"})
_SAYING = frozenset({"critical", "debug", "error", "info", "log", "print", "warn", "warning"})


def is_passed_over(attribute: ast.Attribute, module: Module, study: Study) -> bool:
    """Whether the program goes on, and does something else, where an attribute is missing."""
    child: ast.AST = attribute
    for parent in module.table.ancestors(attribute):
        if isinstance(parent, FUNCTIONS):
            return False
        if isinstance(parent, (ast.Try, ast.TryStar)) and child in parent.body:
            if any(map(_catches, parent.handlers)):
                return True
        elif isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            if any(_suppresses(item.context_expr) for item in parent.items):
                return True
        elif any(_asks(test, attribute, module, study) for test in _tests(parent, child)):
            return decides_more_than_messages(child, module)
        child = parent
    return False


def decides_more_than_messages(node: ast.AST, module: Module) -> bool:
    """Whether a condition with ``node`` in it decides more than what is printed or logged."""
    table = module.table
    statement = table.statement(node)
    if isinstance(statement, ast.If) and node is not statement:
        return not all(map(_only_says, (*statement.body, *statement.orelse)))
    branch = table.parents[statement]
    if isinstance(branch, ast.If):
        return not all(map(_only_says, (*branch.body, *branch.orelse)))
    return not _only_says(statement)


def _tests(parent: ast.AST, child: ast.AST) -> Iterator[ast.expr]:
    """The conditions in ``parent`` under which ``child`` runs."""
    match parent:
        case ast.If() | ast.While() | ast.IfExp() if child is not parent.test:
            yield parent.test
        case ast.BoolOp():
            yield from parent.values[: parent.values.index(child)]  # type: ignore[arg-type]
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            yield from (test for generator in parent.generators for test in generator.ifs)
    if isinstance(child, ast.stmt):
        block = block_of(parent, child)
        yield from _left_before(block[: block.index(child)])


def _left_before(statements: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """``if not hasattr(...): return``."""
    for statement in statements:
        if isinstance(statement, ast.If) and isinstance(
            statement.body[-1], (ast.Return, ast.Continue, ast.Break)
        ):
            yield statement.test


def _asks(test: ast.expr, attribute: ast.Attribute, module: Module, study: Study) -> bool:
    """Whether a condition asks if an object has the attribute, or another one of FSDP1's models."""
    owner = ast.unparse(attribute.value)
    for node in ast.walk(test):
        match node:
            case ast.Name():
                for found in model_values.definitions(node, module):
                    if found.kind is Kind.ASSIGN and found.value is not None:
                        calls = isinstance(found.value, ast.Call)
                        if calls and _asks(found.value, attribute, module, study):
                            return True
            case ast.Call(
                func=ast.Name(id="hasattr" | "getattr" as function),
                args=[asked, ast.Constant(value=str(name)), *default],
            ) if (default or function == "hasattr") and ast.unparse(asked) == owner:
                told = name in model_attributes.TELLING and study.traced(asked, module)
                if (name == attribute.attr or name in fsdp1.METHODS) and not told:
                    return True
    return False


def _catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler goes on after an attribute was missing."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {"" if k is None else getattr(k, "attr", getattr(k, "id", "?")) for k in kinds}
    return not names.isdisjoint(_CATCHING) and not isinstance(handler.body[-1], ast.Raise)


def _suppresses(context: ast.expr) -> bool:
    match context:
        case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=kinds):
            return any(getattr(k, "id", "") in _CATCHING for k in kinds)
    return False


def _only_says(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Raise() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name))):
            return name in _SAYING
    return False
