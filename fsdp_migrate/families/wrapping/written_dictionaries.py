"""The entries of dictionaries that are written out: ``dict(name=value)`` or ``{"name": value}``.

A dictionary may be made in several places, of which one runs, and changed where it was made.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.model import Entry
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

# ``print``, ``rank0_print`` and ``logger.info``.
SAYING = re.compile(
    r"(?i)(?:^|[._])p?print(?![a-z])|log(?:s|ger|ging)?\.(?:debug|info|warning|log)$"
)

Made = tuple[ast.stmt, ast.Call | ast.Dict]  # a dictionary, and the statement that makes it


class Unreadable(Exception):
    """The dictionary is used in a way that is not understood."""


def entries_of(
    name: str, scope: Scope, readers: Collection[ast.AST], module: Module
) -> Iterator[Entry]:
    """The entries of the dictionary that has a name in a scope.

    Args:
        readers: what may read it as a whole.

    Raises:
        Unreadable: it is made, changed or read in another way.
    """
    made = made_by(name, scope)
    own = {statement: list(items_of(written, statement)) for statement, written in made}
    for_all: list[Entry] = []
    for use in module.table.names_by_id.named(name):
        parent = module.table.parents[use]
        is_meant = module.table.within[use].lookup(name) is scope
        if is_meant and parent not in readers and parent not in own and not is_told(use, module):
            changed = next((s for s in reversed(own) if _is_behind(use, s, module)), None)
            into = for_all if changed is None else own[changed]
            into.extend(_changes(use, changed or _around([*own], module), module))
    yield from either(own.values())
    yield from for_all


def is_told(use: ast.Name, module: Module) -> bool:
    """Whether a line of a log tells of a whole dictionary, and does nothing else: it tells of what
    the dictionary has then."""
    said: ast.AST = use
    while isinstance(parent := module.table.parents[said], (ast.FormattedValue, ast.JoinedStr)):
        said = parent
    match parent:
        case ast.Call(func=function) if isinstance(module.table.parents[parent], ast.Expr):
            return said in parent.args and SAYING.search(access_path(function) or "") is not None
    return False


def entries_at(call: ast.Call, entries: Iterable[Entry], module: Module) -> Iterator[Entry]:
    """What a dictionary that is made in one place has at a call: nothing that another branch adds,
    and for certain what the call's own branch added before."""
    branches = [*_branches(call, module)]
    for entry in entries:
        own = [*_branches(entry.statement, module)] if entry.is_conditional else []
        if any(
            node is other and block is not beside
            for node, block in own
            for other, beside in branches
        ):
            continue
        is_certain = all(each in branches for each in own)
        yield replace(entry, is_conditional=False) if own and is_certain else entry


def _branches(node: ast.AST, module: Module) -> Iterator[tuple[ast.If, list[ast.stmt]]]:
    """The conditions around a node, with the branch of each that it stands in."""
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            return
        if isinstance(parent, ast.If) and isinstance(child, ast.stmt):
            yield parent, block_of(parent, child)
        child = parent


def _is_behind(node: ast.AST, statement: ast.stmt, module: Module) -> bool:
    """Whether a node stands in the block of a statement, or in one inside of it."""
    block = block_of(module.table.parents[statement], statement)
    return not {*module.table.ancestors(node)}.isdisjoint(block)


def _around(statements: Sequence[ast.stmt], module: Module) -> ast.stmt:
    """The condition whose branches statements stand in.

    Raises:
        Unreadable: they stand otherwise.
    """
    around = [[*module.table.ancestors(statement)] for statement in statements]
    whole = next(node for node in around[0] if all(node in others for others in around))
    if not isinstance(whole, ast.If):
        raise Unreadable("it changes, and not where it is made")
    return whole


def made_by(name: str, scope: Scope) -> list[Made]:
    """The dictionaries that have a name, and the statements that make them.

    Raises:
        Unreadable: it may be something else.
    """
    found = []
    for binding in scope.bindings[name]:
        if binding.kind is Kind.AUGMENT:
            continue
        if binding.kind is not Kind.ASSIGN or binding.unpack:
            raise Unreadable("it is made in another way")
        statement = binding.node
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if len(targets) != 1 and not isinstance(statement, ast.AnnAssign):
            raise Unreadable("it has several names")
        found.append((of_kind(statement, ast.stmt), display(binding.value, scope)))
    if not found:
        raise Unreadable("it is made in another way")
    return found


def either(dictionaries: Collection[Sequence[Entry]]) -> Iterator[Entry]:
    """The entries of dictionaries of which the program makes one."""
    certain = [{e.name for e in entries if not e.is_conditional} for entries in dictionaries]
    for entry in (entry for entries in dictionaries for entry in entries):
        lacking = any(entry.name not in names for names in certain)
        yield replace(entry, is_conditional=entry.is_conditional or lacking)


def display(made: object, scope: Scope) -> ast.Call | ast.Dict:
    """A dictionary that is written out.

    Raises:
        Unreadable: it is something else.
    """
    match made:
        case ast.Dict():
            return made
        case ast.Call(func=ast.Name(id="dict"), args=[]) if scope.lookup("dict") is None:
            return made
    raise Unreadable("it is made in another way")


def items_of(
    made: ast.Call | ast.Dict, statement: ast.stmt, *, conditional: bool = False
) -> Iterator[Entry]:
    """The entries of ``dict(...)`` or ``{...}``."""
    pairs: list[tuple[object, ast.keyword | ast.expr, ast.expr, ast.keyword | ast.expr]] = []
    if isinstance(made, ast.Call):
        pairs = [(k.arg, k, k.value, k) for k in made.keywords]
    else:
        for key, value in zip(made.keys, made.values, strict=True):
            name = key.value if isinstance(key, ast.Constant) else None
            pairs.append((name, value, value, value if key is None else key))
    for said, node, value, key_node in pairs:
        yield Entry(_argument(said), node, value, key_node, statement, conditional, made)


def _changes(use: ast.Name, made: ast.stmt, module: Module) -> Iterator[Entry]:
    """What a statement adds: ``params["name"] = value``, ``params.update(name=value)`` or ``|=``.

    It stands in the dictionary's own block or under an ``if`` of it.
    """
    node = module.table.parents[use]
    statement = module.table.statement(use)
    conditional = _is_conditional(statement, made, module)
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=target, slice=ast.Constant(value=key))]) if (
            target is use
        ):
            name, value = _argument(key), statement.value
            yield Entry(
                name, value, value, of_kind(node, ast.Subscript).slice, statement, conditional
            )
        case ast.AugAssign(target=target, op=ast.BitOr(), value=ast.Dict() as added) if (
            target is use
        ):
            yield from items_of(added, statement, conditional=conditional)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="update")) as call) if (
            target is use
        ):
            match call:
                case ast.Call(args=[]):
                    yield from items_of(call, statement, conditional=conditional)
                case ast.Call(args=[ast.Dict() as added], keywords=[]):
                    yield from items_of(added, statement, conditional=conditional)
                case _:
                    raise Unreadable("it is updated from elsewhere")
        case _:
            raise Unreadable("it is used for something else")


def _is_conditional(statement: ast.stmt, made: ast.stmt, module: Module) -> bool:
    """Whether a later statement is under an ``if`` that the dictionary is not.

    Raises:
        Unreadable: it is under something else, or runs before.
    """
    block = block_of(module.table.parents[made], made)
    child: ast.AST = statement
    while block_of(module.table.parents[child], of_kind(child, ast.stmt)) is not block:
        parent = module.table.parents[child]
        if not isinstance(parent, ast.If):
            raise Unreadable("it changes under more than a condition")
        child = parent
    if statement.lineno <= (made.end_lineno or 0):
        raise Unreadable("it changes before it is made")
    return child is not statement


def _argument(key: object) -> str:
    """The name that an argument of FSDP1 has today."""
    if not isinstance(key, str):
        raise Unreadable("a key is not written out")
    return fsdp1.EARLIER_NAMES.get(key, key)
