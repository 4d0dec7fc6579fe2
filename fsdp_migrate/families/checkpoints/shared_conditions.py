"""Conditions that every rank finds the same: ``if epoch % 10 == 0``, and not ``if loss < best``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints import ranks
from fsdp_migrate.syntax.trees import FUNCTIONS

SETTINGS = frozenset(
    {"args", "cfg", "conf", "config", "hparams", "opt", "options", "params", "training_args"}
)
COUNTERS = ("step", "epoch", "iter", "interval", "every", "freq")
MODES = ("fsdp", "shard", "ddp", "distributed", "use_", "mode")
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.NotEq: ast.Eq, ast.Eq: ast.NotEq}
PURE = (
    ast.Attribute,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.Constant,
    ast.Name,
    ast.UnaryOp,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
)


def conditions_between(
    node: ast.AST, place: ast.stmt, passed: list[ast.AST], module: Module
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The conditions between ``place`` and ``node``: those that all ranks share, and the others."""
    table = module.table
    path: list[tuple[ast.expr, bool]] = []
    child = node
    for parent in table.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            break
        if isinstance(parent, ast.If) and child is not parent.test:
            path.append((parent.test, child in parent.body))
        child = parent
        if parent is place:
            break
    return sort_conditions(path[::-1], passed, module)


def sort_conditions(
    tests: list[tuple[ast.expr, bool]], passed: list[ast.AST], module: Module
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of some conditions: those that are the same on every rank, and the others.

    Each condition comes with whether it is true where the code runs.
    """
    bound = {
        access_path(n)
        for each in passed
        for n in ast.walk(each)
        if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)
    }
    kept: list[str] = []
    others: list[str] = []
    for test, holds in tests:
        for part in parts_of_test(test, ast.And if holds else ast.Or):
            if ranks.mentions_rank(part):
                continue
            steady = _is_steady(part) and not _paths(part) & bound
            wanted = kept if steady and not (others and _reaches_in(part)) else others
            wanted.append(_spelled(part, module) if holds else _negated(part, module))
    return tuple(kept), tuple(others)


def parts_of_test(test: ast.expr, kind: type[ast.boolop]) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, kind):
        return [part for value in test.values for part in parts_of_test(value, kind)]
    return [test]


def _is_steady(test: ast.expr) -> bool:
    """Whether a condition is the same on every rank and costs nothing to ask twice.

    Counters, modes and settings are the same; losses and scores are each rank's own.
    """
    if not all(isinstance(node, PURE) for node in ast.walk(test)):
        return False
    if isinstance(test, ast.Compare):
        texts = [isinstance(c, ast.Constant) and isinstance(c.value, str) for c in test.comparators]
        if all(texts):
            return True  # a mode
    return all(map(_is_steady_name, _paths(test)))


def _is_steady_name(path: str) -> bool:
    *owners, last = path.split(".")
    if any(owner in SETTINGS for owner in owners):
        return True
    return path.isupper() or any(word in last.lower() for word in COUNTERS + MODES)


def _paths(test: ast.expr) -> set[str]:
    """The longest dotted names in an expression."""
    found = set()
    stack: list[ast.AST] = [test]
    while stack:
        node = stack.pop()
        path = access_path(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if path is not None:
            found.add(path)
        else:
            stack.extend(ast.iter_child_nodes(node))
    return found


def _reaches_in(test: ast.expr) -> bool:
    return any("." in path for path in _paths(test))


def _spelled(node: ast.expr, module: Module) -> str:
    """An expression as the project writes it, on one line."""
    text = ast.get_source_segment(module.source.text, node) or ""
    if not text or "\n" in text:
        text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BoolOp) else text


def _negated(node: ast.expr, module: Module) -> str:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _spelled(node.operand, module)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE and len(node.ops) == 1:
        opposite = ast.Compare(node.left, [OPPOSITE[type(node.ops[0])]()], node.comparators)
        return ast.unparse(opposite)
    text = _spelled(node, module)
    return f"not ({text})" if isinstance(node, (ast.Compare, ast.BinOp)) else f"not {text}"
