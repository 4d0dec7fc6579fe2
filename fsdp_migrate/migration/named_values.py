"""Values that a function would write twice get a name, as a person gives them one.

A model's and an optimizer's state are gathered with the same options, which two rules write::

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=options)
    optimizer_state = get_optimizer_state_dict(model, optimizer, options=options)

Only what is made of literals, and only where the first of the places comes before all others
whichever way the function takes: it stands in the block that the others are in or below.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import (
    AddItem,
    AddKeyword,
    Code,
    DropBranch,
    Edit,
    Insert,
    MoveStatement,
    Named,
    ReplaceExpression,
    ReplaceStatement,
    Unwrap,
    code,
    new_code,
)
from fsdp_migrate.planning.naming import Namer
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import LOOPS, block_of

OF_LITERALS = re.compile(r"[\w.]+\((\w+=(True|False)(, )?)+\)")


@dataclass(frozen=True)
class _Use:
    """A place where an edit writes a value."""

    edit: Edit
    value: Named
    statement: ast.stmt


def name_repeated(module: Module, edits: Sequence[Edit]) -> list[Edit]:
    """The edits of a file, with a name for each value that a function would write twice."""
    groups: dict[tuple[Scope, str, str, str], list[_Use]] = defaultdict(list)
    for use in _uses(module, edits):
        scope = module.table.scope_of(use.statement).home()
        if isinstance(scope.node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            value = use.value
            groups[scope, value.name, value.purpose, value.preview()].append(use)
    holders: dict[tuple[Scope, str], list[_Use]] = {}
    above: dict[Edit, Insert] = {}
    names: dict[Code, str] = {}
    for (scope, name, *_), uses in groups.items():
        uses.sort(key=lambda use: use.statement.lineno)
        named = [use for use in uses if _comes_first(uses[0], use, module, edits)]
        held = holders.get((scope, name), [])
        if len(named) < 2 or not _is_free(name, scope, module, edits):
            continue
        if held and not _may_follow(held, named, module):
            continue
        holders[scope, name] = named
        bound = code("{n} = {v}", n=name, v=named[0].value.preview())
        above[named[0].edit] = Insert(module, named[0].statement, (bound,))
        names |= {use.value: name for use in named}
    result: list[Edit] = []
    for edit in edits:
        result += [above[edit]] if edit in above else []
        result.append(_renamed(edit, names) if names else edit)
    return result


def _uses(module: Module, edits: Sequence[Edit]) -> Iterator[_Use]:
    """The places at which a value of literals is written, but for what is written no more."""
    with_values = [(e, v) for e in edits for c in new_code(e) for v in _values(c)]
    if len(with_values) < 2:
        return
    gone = {e.node for e in edits if isinstance(e, (ReplaceExpression, ReplaceStatement))}
    gone |= {e.node for e in edits if isinstance(e, (DropBranch, MoveStatement))}
    for edit, value in with_values:
        match edit:
            case AddKeyword(call=node) | AddItem(node=node) | ReplaceExpression(node=node):
                place: ast.AST = node
            case Insert(node=node) | ReplaceStatement(node=node) | Unwrap(node=node):
                place = node
            case _:
                continue
        around = set(module.table.ancestors(place))
        statement = module.table.statement(place)
        if gone.isdisjoint(around) and OF_LITERALS.fullmatch(value.preview()):
            yield _Use(edit, value, statement)


def _values(new: Code) -> Iterator[Named]:
    if isinstance(new, Named):
        yield new
    for part in new.parts.values():
        if isinstance(part, Code):
            yield from _values(part)


def _comes_first(first: _Use, use: _Use, module: Module, edits: Sequence[Edit]) -> bool:
    """Whether a place is among the statements that follow the first one, or below them."""
    parents = module.table.parents
    unwrapped = {
        e.node for e in edits if isinstance(e, Unwrap) and len(e.items) == len(e.node.items)
    }
    statement, holder = first.statement, parents[first.statement]
    around = {use.statement, *module.table.ancestors(use.statement)}
    if isinstance(holder, ast.If) and holder.orelse == [statement]:
        return False  # an ``elif``, above which nothing can stand
    while around.isdisjoint(block_of(holder, statement)):
        if holder not in unwrapped:
            return False
        assert isinstance(holder, ast.stmt)
        statement, holder = holder, parents[holder]
    return True


def _may_follow(held: Sequence[_Use], named: Sequence[_Use], module: Module) -> bool:
    """Whether a name is read no more where it gets another value."""
    around = {n for n in module.table.ancestors(named[0].statement) if isinstance(n, LOOPS)}
    binder, last = held[0].statement, max(use.statement.end_lineno or 0 for use in held)
    return last < named[0].statement.lineno and around <= set(module.table.ancestors(binder))


def _is_free(name: str, scope: Scope, module: Module, edits: Sequence[Edit]) -> bool:
    """Whether neither the file nor new code means anything else by a name."""
    if Namer().fresh(module, [scope], name) != name:
        return False
    word = re.compile(rf"(?<![\w.]){name}\b(?!=)")
    return not any(word.search(c.preview()) for e in edits for c in new_code(e))


def _renamed(edit: Edit, names: Mapping[Code, str]) -> Edit:
    """An edit that writes the names of values."""

    def renamed(new: Code) -> Code:
        if new in names:
            return code("{n}", n=names[new])
        parts = {k: renamed(p) if isinstance(p, Code) else p for k, p in new.parts.items()}
        return replace(new, parts=parts)

    match edit:
        case ReplaceExpression() | AddKeyword() | AddItem():
            return replace(edit, code=renamed(edit.code))
        case ReplaceStatement() | Insert():
            return replace(edit, codes=tuple(map(renamed, edit.codes)))
        case Unwrap():
            return replace(edit, before=tuple(map(renamed, edit.before)))
    return edit
