"""Where a dictionary of arguments goes that a function has made: from variable to parameter.

``settings = make()`` and ``build(settings)`` read it as ``settings`` here, and as the parameter of
``build`` there; ``settings["auto_wrap_policy"] = None`` right behind its call replaces what the
function has put there, before anything can read that.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import argument_of, class_of_method, is_static
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.wrapping.taken_contents import Contents, read_use
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import block_of


class Holder(NamedTuple):
    """A variable or parameter that has the dictionary."""

    name: str
    scope: Scope
    module: Module

    @property
    def uses(self) -> Iterator[ast.Name]:
        """Where it is read."""
        table = self.module.table
        for use in table.names_by_id.named(self.name):
            is_meant = table.within[use].lookup(use.id) is self.scope
            if is_meant and isinstance(use.ctx, ast.Load):
                yield use


def read(
    holders: dict[Holder, None], contents: Contents, readers: Collection[ast.expr], study: Study
) -> None:
    """Read what is done with the dictionary, here and wherever it is handed on to.

    Args:
        holders: the variables that have it first.
        readers: what constructors are given with two stars.

    Raises:
        Unreadable: something may do anything with it.
    """
    waiting, first = [*holders], {*holders}
    while waiting:
        holder = waiting.pop()
        for use in holder.uses:
            if _is_test(use, holder.module):
                contents.is_asked_itself = contents.is_asked_itself or _asks_for_truth(use, holder)
                continue
            found = [*_handed_to(use, holder.module, study)]
            if not found:
                # A parameter may have other dictionaries as well, so that nothing goes there.
                read_use(use, holder.module, contents, {*readers}, stays=holder not in first)
            for each in found:
                if each not in holders:
                    holders[each] = None
                    waiting.append(each)


def _is_test(use: ast.Name, module: Module) -> bool:
    """Whether something asks only whether there is a dictionary: ``if settings is not None``."""
    parents = module.table.parents
    parent = parents[use]
    match parent:
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant()]):
            return left is use
        case ast.If() | ast.IfExp():
            return parent.test is use
        case ast.UnaryOp(op=ast.Not()):
            return True
    return False


def _asks_for_truth(use: ast.Name, holder: Holder) -> bool:
    """Whether an empty dictionary would be as good as none to a test."""
    return not isinstance(holder.module.table.parents[use], ast.Compare)


def _handed_to(use: ast.Name, module: Module, study: Study) -> Iterator[Holder]:
    """The parameters that an argument of a call is for.

    Raises:
        Unreadable: some function that the call may run is not in sight, or may collect it.
    """
    parents = module.table.parents
    parent = parents[use]
    call = parents[parent] if isinstance(parent, ast.keyword) and parent.arg else parent
    if not isinstance(call, ast.Call) or call.func is use or isinstance(parent, ast.Starred):
        return
    called = [v for v in study.values(call.func, module) if isinstance(v, (Function, Class))]
    if len(called) < len(study.values(call.func, module)):
        return
    for value in called:
        for function in _functions(value, call, module, study):
            yield _parameter(use, call, function, made=isinstance(value, Class))


def _functions(
    value: Function | Class, call: ast.Call, module: Module, study: Study
) -> Iterator[Function]:
    """A function, or what makes objects of a class.

    Raises:
        Unreadable: nothing in sight makes them.
    """
    if isinstance(value, Function):
        yield value
        return
    found = study.tracer.attribute(value, "__init__", call, module)
    for each in found:
        if not isinstance(each, Function):
            raise Unreadable("a class that gets it is made by another library")
        yield each
    if not found:
        raise Unreadable("a class that gets it is made by another library")


def _parameter(use: ast.Name, call: ast.Call, function: Function, *, made: bool) -> Holder:
    """The parameter that an argument is for, which has no other value than its callers give.

    Raises:
        Unreadable: there is none.
    """
    node, module = function.node, function.module
    bound = made or (class_of_method(node, module) is not None and not is_static(node))
    arguments = node.args
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if argument_of(call, node, each.arg, bound=bound) is use:
            scope = module.table.scopes[node]
            if [b.kind for b in scope.bindings[each.arg]] != [Kind.PARAMETER]:
                raise Unreadable("a parameter that gets it has another value later")
            return Holder(each.arg, scope, module)
    raise Unreadable("what collects arguments gets it")


# -- what is replaced at once -----------------------------------------------------------------


def surely_replaced(holders: Collection[Holder]) -> frozenset[str]:
    """The arguments that every variable's own block puts there before anything reads them."""
    given = [
        {*_put_behind(of_kind(binding.node, ast.stmt), holder)}
        for holder in holders
        for binding in holder.scope.bindings[holder.name]
    ]
    return frozenset(set.intersection(*given)) if given else frozenset()


def _put_behind(statement: ast.stmt, holder: Holder) -> Iterator[str]:
    """What the statements behind a call put into its dictionary, up to the first that does
    something else with it."""
    table = holder.module.table
    if any(table.scope_of(use).home() is not holder.scope for use in holder.uses):
        return  # a function inside may read it at any time
    block = block_of(table.parents[statement], statement)
    for each in block[block.index(statement) + 1 :]:
        used = {use for use in holder.uses if each.lineno <= use.lineno <= (each.end_lineno or 0)}
        match each:
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name() as target, slice=ast.Constant(str(key)))]
            ) if used == {target}:
                yield fsdp1.EARLIER_NAMES.get(key, key)
            case _ if used:
                return
