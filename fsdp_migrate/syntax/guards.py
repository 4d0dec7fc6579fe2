"""What ``rewrite`` puts in front of code that must not run on: a statement that raises, or, where
the program may catch that, one that prints and another that leaves the process.

Here a guard is written and known again; where one can stand is ``partial.py``'s business.
"""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.trees import block_of

ERRORS = frozenset({"NotImplementedError", "SystemExit"})
EXIT = "os._exit"  # in the place of an error: nothing catches it
WIDTH = 80  # of a message's lines
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
TEXT = re.compile(r"fsdp-migrate (FSDP\d{3}): (.*)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Guard:
    """A guard in code: the statement that stops, with the code and the reason that it gives."""

    statement: ast.stmt
    code: str
    reason: str
    always: bool  # False: it raises under a condition, before a part of a statement


def text(code: str, reason: str, error: str, os: str = "os", sys: str = "sys") -> str:
    """What raises one of ``ERRORS``, or leaves by ``EXIT``, a long message in several lines.

    os, sys: how these modules are written there.
    """
    message = f"fsdp-migrate {code}: {reason}"
    words = textwrap.wrap(message, WIDTH, break_long_words=False, break_on_hyphens=False)
    if len(message) <= WIDTH or " ".join(words) != message:
        words = [message]
    parts = [_quoted(part) for part in (*(f"{w} " for w in words[:-1]), words[-1])]
    if error == EXIT:
        return f"{_call('print', parts, f'file={sys}.stderr')}\n{os}._exit(1)"
    return f"raise {_call(error, parts)}"


def _call(function: str, parts: list[str], *more: str) -> str:
    """A call with a text in parts, and more arguments."""
    if len(parts) == 1:
        return f"{function}({', '.join((parts[0], *more))})"
    last = "," if more else ""
    lines = [*parts[:-1], f"{parts[-1]}{last}", *(f"{each}," for each in more)]
    return "\n".join((f"{function}(", *(f"    {line}" for line in lines), ")"))


def _quoted(message: str) -> str:
    return json.dumps(message, ensure_ascii=False)


def read(statement: ast.stmt, above: ast.stmt | None = None) -> Guard | None:
    """The guard that a statement is, below another one."""
    match statement, above:
        case ast.If(body=[*head, last], orelse=[]), _ if len(head) <= 1:
            found = read(last, *head)
            if found and bool(head) == isinstance(last, ast.Expr):
                return Guard(statement, found.code, found.reason, always=False)
        case (
            ast.Raise(
                exc=ast.Call(func=ast.Name(id=error), args=[ast.Constant(value=str(said))]),
                cause=None,
            ),
            _,
        ) if error in ERRORS and (known := TEXT.fullmatch(said)):
            return Guard(statement, known[1], known[2], always=True)
        case (
            ast.Expr(value=ast.Call(func=ast.Attribute(attr="_exit"))),
            ast.Expr(
                value=ast.Call(func=ast.Name(id="print"), args=[ast.Constant(value=str(said))])
            ),
        ) if known := TEXT.fullmatch(said):
            return Guard(statement, known[1], known[2], always=True)
    return None


def within(tree: ast.AST) -> Iterator[Guard]:
    """All guards below a node; one with a condition comes as what is inside, too."""
    for node in ast.walk(tree):
        for _, block in ast.iter_fields(node):
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                for above, statement in zip((None, *block), block, strict=False):
                    found = read(statement, above)
                    if found is not None:
                        yield found


_FOUND: WeakKeyDictionary[NameTable, dict[ast.stmt, Guard]] = WeakKeyDictionary()


def of(table: NameTable) -> dict[ast.stmt, Guard]:
    """The guards of a module by their statements; those inside a condition count as that one."""
    known = _FOUND.get(table)
    if known is None:
        stops: list[ast.expr] = [n for error in ERRORS for n in table.names_by_id.named(error)]
        stops += table.attributes_by_name.named("_exit")
        known = _FOUND[table] = {}
        for name in stops:
            statement = table.statement(name)
            parent = table.parents[statement]
            around = read(parent) if isinstance(parent, ast.If) else None
            block = block_of(parent, statement)
            above = block[block.index(statement) - 1] if block[0] is not statement else None
            found = around or read(statement, above)
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
