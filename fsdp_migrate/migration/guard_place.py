"""Where a guard stands: in front of the statement in which its site runs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.syntax.expressions import last_name

IMMEDIATE = frozenset({"all", "any", "dict", "join", "list", "max", "min", "set", "sorted", "sum"})
# Calls that may be made once more without changing anything.
ASKING = frozenset({"callable", "get_rank", "get_world_size", "hasattr", "is_available"}) | {
    "is_initialized",
    "isinstance",
    "len",
}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.For, ast.With)


@dataclass(frozen=True)
class Place:
    """In front of ``statement``, raising under all of ``conditions``."""

    statement: ast.stmt
    conditions: tuple[Code, ...] = ()


class Nowhere(Exception):
    """No guard can stand; the message says why."""


def find(site: Site, nodes: set[ast.AST]) -> Place:
    """The statement in front of which a guard raises exactly when the site would run.

    Raises:
        Nowhere: there is none.
    """
    table = site.module.table
    if isinstance(site.node, ast.stmt) and not isinstance(site.node, SIMPLE):
        raise Nowhere("it is a definition")
    conditions: list[Code] = []
    tests: list[ast.expr] = []
    child: ast.AST = site.node
    while not isinstance(child, ast.stmt):
        parent = table.parents[child]
        for test, wanted in _deciding(child, parent, table.parents.get(parent)):
            tests.append(test)
            conditions.insert(0, _condition(test, wanted))
        child = parent
    statement: ast.stmt = child
    if isinstance(statement, ast.While) and conditions:
        raise Nowhere("it runs in some rounds of a loop")
    while isinstance(statement, ast.If) and (above := _chain(statement, site.module)) is not None:
        tests.append(above.test)  # what an elif tests is guarded above its if
        conditions.insert(0, _condition(above.test, wanted=False))
        statement = above
    for test in tests:
        if not is_plain(test):
            raise Nowhere(
                f"'{ast.unparse(test)}' decides whether it runs, and cannot be asked twice"
            )
        if any(n in nodes for n in ast.walk(test)):
            raise Nowhere(f"'{ast.unparse(test)}' decides whether it runs, and is FSDP1's")
    items = statement.items if isinstance(statement, (ast.With, ast.AsyncWith)) else []
    binds = any(isinstance(n, ast.NamedExpr) for n in ast.walk(statement))
    if tests and (binds or any(item.optional_vars is not None for item in items)):
        raise Nowhere("what decides whether it runs is assigned on the way")
    return Place(statement, tuple(conditions))


def _chain(statement: ast.If, module: Module) -> ast.If | None:
    """The ``if`` or ``elif`` whose ``elif`` a statement is."""
    above = module.table.parents[statement]
    line = module.source.lines[statement.lineno - 1]
    is_elif = line.lstrip().startswith("elif")
    if is_elif and isinstance(above, ast.If) and above.orelse == [statement]:
        return above
    return None


def _deciding(
    child: ast.AST, parent: ast.AST, around: ast.AST | None
) -> Iterator[tuple[ast.expr, bool]]:
    """What decides, in ``parent``, whether ``child`` is evaluated, and which way.

    Raises:
        Nowhere: that cannot be said in front of the statement.
    """
    match parent:
        case ast.IfExp() if child is not parent.test:
            yield parent.test, child is parent.body
        case ast.BoolOp():
            index = parent.values.index(child)  # type: ignore[arg-type]
            for earlier in reversed(parent.values[:index]):
                yield earlier, isinstance(parent.op, ast.And)
        case ast.Compare() if child in parent.comparators[1:]:
            raise Nowhere("it is part of a chain of comparisons")
        case ast.Lambda():
            raise Nowhere("it runs when a lambda is called")
        case ast.GeneratorExp() if not _is_first(child, parent):
            if not isinstance(around, ast.Call) or last_name(around.func) not in IMMEDIATE:
                raise Nowhere("it runs when a generator is asked")
        case ast.comprehension() if child is not parent.iter:
            raise Nowhere("it is a part of a comprehension")
        case ast.match_case() | ast.ExceptHandler():
            raise Nowhere("it belongs to a pattern or a handler")
        case ast.For() | ast.AsyncFor() if child is parent.target:
            raise Nowhere("it is assigned to in each round of a loop")
        case ast.Assert() if child is parent.msg:
            raise Nowhere("it is the message of an assert")
        case ast.arg() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.AnnAssign() if child in (
            getattr(parent, "annotation", None),
            getattr(parent, "returns", None),
        ):
            raise Nowhere("it is an annotation")
        case ast.Import() | ast.ImportFrom():
            raise Nowhere("it is an import")
    if isinstance(parent, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        first, *more = parent.generators
        if not _is_first(child, parent) and (more or first.ifs):
            raise Nowhere("it is a part of a comprehension")


def _is_first(child: ast.AST, comprehension: ast.expr) -> bool:
    """Whether ``child`` holds the first iterable, which is evaluated at once."""
    generators: list[ast.comprehension] = getattr(comprehension, "generators", [])
    return bool(generators) and child is generators[0]


def _condition(test: ast.expr, wanted: bool) -> Code:
    return code("{t}", t=test) if wanted else code("not {t}", t=test)


def is_plain(node: ast.expr) -> bool:
    """Whether an expression may be asked once more."""
    match node:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute():
            return is_plain(node.value)
        case ast.UnaryOp():
            return is_plain(node.operand)
        case ast.Subscript():
            return is_plain(node.value) and is_plain(node.slice)
        case ast.BoolOp():
            return all(map(is_plain, node.values))
        case ast.Compare():
            return all(map(is_plain, (node.left, *node.comparators)))
        case ast.Tuple():
            return all(map(is_plain, node.elts))
        case ast.Call(keywords=[]):
            return last_name(node.func) in ASKING and all(map(is_plain, node.args))
    return False
