"""What ``rewrite`` puts in front of code that must not run on: a statement that raises.

Here a guard is written and known again; where one can stand is ``partial.py``'s business.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.trees import block_of

ERRORS = frozenset({"NotImplementedError", "SystemExit"})
WIDTH = 80  # of a message's lines
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXT = re.compile(r"fsdp-migrate (FSDP\d{3}): (.*)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Guard:
    """A guard in code: the statement, with the code and the reason that it gives."""

    statement: ast.stmt
    code: str
    reason: str
    always: bool  # False: it raises under a condition, before a part of a statement


def text(code: str, reason: str, error: str) -> str:
    """The statement that raises one of ``ERRORS``, a long message in several lines."""
    message = f"fsdp-migrate {code}: {reason}"
    words = textwrap.wrap(message, WIDTH, break_long_words=False, break_on_hyphens=False)
    if len(message) <= WIDTH or " ".join(words) != message:
        return f"raise {error}({_quoted(message)})"
    lines = [f"    {_quoted(part)}" for part in (*(f"{w} " for w in words[:-1]), words[-1])]
    return "\n".join((f"raise {error}(", *lines, ")"))


def _quoted(message: str) -> str:
    return json.dumps(message, ensure_ascii=False)


def read(statement: ast.stmt) -> Guard | None:
    """The guard that a statement is."""
    match statement:
        case ast.If(body=[ast.Raise() as inner], orelse=[]):
            found = read(inner)
            return found and Guard(statement, found.code, found.reason, always=False)
        case ast.Raise(
            exc=ast.Call(func=ast.Name(id=error), args=[ast.Constant(value=str(said))]),
            cause=None,
        ) if error in ERRORS and (known := TEXT.fullmatch(said)):
            return Guard(statement, known[1], known[2], always=True)
    return None


_FOUND: WeakKeyDictionary[NameTable, dict[ast.stmt, Guard]] = WeakKeyDictionary()


def of(table: NameTable) -> dict[ast.stmt, Guard]:
    """The guards of a module by their statements; those inside a condition count as that one."""
    known = _FOUND.get(table)
    if known is None:
        errors = [name for error in ERRORS for name in table.names_by_id.named(error)]
        known = _FOUND[table] = {}
        for name in errors:
            statement = table.statement(name)
            parent = table.parents[statement]
            around = read(parent) if isinstance(parent, ast.If) else None
            found = around or read(statement)
            if found is not None:
                known[found.statement] = found
    return known


def before(table: NameTable, node: ast.AST) -> Guard | None:
    """The guard that keeps ``node`` from running: above it in its block, or in a block around.

    One with a condition is for what is evaluated in the statement right below it.
    """
    guards = of(table)
    if not guards:
        return None
    heads: set[ast.AST] = {table.statement(node)}
    child: ast.AST = node
    for statement in (node, *table.ancestors(node)):
        if statement in guards:
            return None  # a part of the guard itself
        if isinstance(statement, _DEFINITIONS) and child in statement.body:
            return None  # what stands above a function does not keep it from being called
        if isinstance(statement, ast.stmt):
            near = statement in heads
            block = block_of(table.parents[statement], statement)
            for above in reversed(block[: block.index(statement)]):
                guard = guards.get(above)
                if guard is not None and (near or guard.always):
                    return guard
                near = near and guard is not None
            parent = table.parents[statement]
            if statement in heads and getattr(parent, "orelse", None) == [statement]:
                heads.add(parent)  # an elif: what is evaluated there is guarded above the chain
        child = statement
    return None
