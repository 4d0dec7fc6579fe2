"""Where a condition alone decides whether a micro-batch's gradients are reduced.

``with nullcontext() if last else model.no_sync():`` around every backward of a file, or a context
that has a name first: ``context = model.no_sync if more else nullcontext``, ``with context():``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import block_of


@dataclass(frozen=True)
class LastMicroBatch:
    """A condition, the context that it chooses, and what gives that a name, if anything does."""

    around: ast.With
    last: Code  # whether gradients are reduced
    named: ast.Assign | None = None


def last_micro_batch(site: Site) -> LastMicroBatch | None:
    """The condition under which a site's context is not entered, if that is all that decides
    whether gradients are reduced, and no error in between is survived."""
    table = site.module.table
    choice = table.parents[site.node]
    if not isinstance(choice, ast.IfExp) or choice.test is site.node:
        return None
    other = choice.orelse if choice.body is site.node else choice.body
    if not _does_nothing(other, called=isinstance(site.node, ast.Call)):
        return None
    above = table.parents[choice]
    named = above if isinstance(above, ast.Assign) else None
    item = above if named is None else _entered(named, site)
    around = table.parents[item] if isinstance(item, ast.withitem) else None
    if not isinstance(item, ast.withitem) or not isinstance(around, ast.With):
        return None
    if len(around.items) > 1 or item.optional_vars is not None:
        return None
    parents = list(table.ancestors(around))
    if any(isinstance(p, (ast.Try, ast.With)) for p in parents):
        return None
    backwards = table.methods.get("backward", ())
    if not backwards or any(around not in table.ancestors(call) for call in backwards):
        return None
    is_last = choice.orelse is site.node
    last = code("{t}", t=choice.test) if is_last else _negated(choice.test)
    return LastMicroBatch(around, last, named)


def _entered(named: ast.Assign, site: Site) -> ast.AST | None:
    """What enters a context by its name, behind the assignment that has always run then: nothing
    else assigns the name, or reads it."""
    table = site.module.table
    target = named.targets[0]
    if len(named.targets) > 1 or not isinstance(target, ast.Name):
        return None
    scope = table.within[target]
    named_so = (n for n in table.names_by_id.named(target.id) if n is not target)
    uses = [n for n in named_so if table.within[n].lookup(target.id) is scope]
    if len(uses) != 1 or table.within[uses[0]] is not scope:
        return None  # a global of a function has another scope as well
    entered: ast.AST = uses[0]
    if not isinstance(site.node, ast.Call):  # the method has a name, and is called there
        entered = table.parents[entered]
        if not isinstance(entered, ast.Call) or entered.func is not uses[0] or entered.args:
            return None
    block = block_of(table.parents[named], named)
    behind = block[block.index(named) + 1 :]
    if not any(each in behind for each in table.ancestors(entered)):
        return None
    return table.parents[entered]


def _does_nothing(context: ast.expr, *, called: bool) -> bool:
    """Whether a context is ``nullcontext()``, or where it is not called yet, that class."""
    if called != isinstance(context, ast.Call):
        return False
    if isinstance(context, ast.Call):
        return not context.args and last_name(context.func) == "nullcontext"
    return last_name(context) == "nullcontext"


def _negated(test: ast.expr) -> Code:
    """The opposite of a condition, as a person writes it."""
    opposite = {
        ast.Lt: ">=",
        ast.Gt: "<=",
        ast.LtE: ">",
        ast.GtE: "<",
        ast.Eq: "!=",
        ast.NotEq: "==",
    }
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return code("{t}", t=operand)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in opposite:
            return code(f"{{a}} {opposite[type(op)]} {{b}}", a=left, b=right)
        case ast.Name() | ast.Attribute() | ast.Call():
            return code("not {t}", t=test)
    return code("not ({t})", t=test)
