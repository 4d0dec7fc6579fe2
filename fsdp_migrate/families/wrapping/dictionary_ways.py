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
from fsdp_migrate.analysis.tracing import call_graph, collected
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_static
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.wrapping.taken_contents import Contents, read_use
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

COLLECTED = "what collects arguments gets it"


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
    holders: dict[Holder, None],
    contents: Contents,
    readers: Collection[ast.expr],
    study: Study,
    idle: Collection[Holder] = (),
) -> None:
    """Read what is done with the dictionary, here and wherever it is handed on to.

    Args:
        holders: the variables that have it first.
        readers: what constructors are given with two stars.
        idle: parameters that nothing in sight gives anything, and that are taken to have it.

    Raises:
        Unreadable: something may do anything with it.
    """
    waiting, first = [*holders, *idle], {*holders}
    holders |= dict.fromkeys(idle)
    while waiting:
        holder = waiting.pop()
        for use in holder.uses:
            if _is_test(use, holder.module):
                contents.is_asked_itself = contents.is_asked_itself or _asks_for_truth(use, holder)
                continue
            found = _handed_to(use, holder.module, study)
            if found is None:
                # A parameter may have other dictionaries as well, so that nothing goes there.
                read_use(use, holder.module, contents, {*readers}, stays=holder not in first)
            for each in found or ():
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


def _handed_to(use: ast.expr, module: Module, study: Study) -> list[Holder] | None:
    """The variables and parameters that get the dictionary from an expression; None where it is
    used in another way.

    Raises:
        Unreadable: some function that may get it is not in sight.
    """
    parents = module.table.parents
    parent = parents[use]
    match parent:
        case ast.Assign(targets=[ast.Name(id=name)]):
            scope = module.table.scope_of(parent)
            if not scope.is_function or len(scope.bindings[name]) != 1:
                raise Unreadable("a variable that gets it has other values")
            return [Holder(name, scope, module)]
        case ast.Call(func=ast.Attribute(attr="get" | "pop", value=taken), args=[_, other]) if (
            other is use and _collects(taken, module, study)
        ):
            return _handed_to(parent, module, study)
    call = parents[parent] if isinstance(parent, ast.keyword) and parent.arg else parent
    if not isinstance(call, ast.Call) or call.func is use or isinstance(parent, ast.Starred):
        return None
    functions = _called(call, module, study)
    if functions is None:
        return None
    if isinstance(parent, ast.keyword):
        name = str(parent.arg)
        return [each for f, _ in functions for each in _by_name(name, f, study, set())]
    place = call.args.index(use)
    if any(isinstance(each, ast.Starred) for each in call.args[:place]):
        raise Unreadable(COLLECTED)
    return [each for f, own in functions for each in _by_place(place + own, f, study)]


def _collects(taken: ast.expr, module: Module, study: Study) -> bool:
    """Whether something is what ``**kwargs`` of a function collects."""
    values = study.values(taken, module)
    return bool(values) and all(collected.function_of(v.node, v.module) for v in values)


def _called(call: ast.Call, module: Module, study: Study) -> list[tuple[Function, int]] | None:
    """The functions that a call runs, what makes objects of classes among them, each with the
    number of parameters that the call does not give; None if others may be called.

    Raises:
        Unreadable: a class has nothing in sight that makes its objects.
    """
    if call_graph.is_on_super(call):
        return [(each, 1) for each in _of_bases(call, module, study)] or None
    values = study.values(call.func, module)
    found: list[tuple[Function, int]] = []
    for value in values:
        if isinstance(value, Class):
            made = study.tracer.attribute(value, "__init__", call, module)
            functions = [each for each in made if isinstance(each, Function)]
            if not functions or len(functions) < len(made):
                raise Unreadable("a class that gets it is made by another library")
            found += [(each, 1) for each in functions]
        elif isinstance(value, Function):
            node = value.node
            is_method = class_of_method(node, value.module) is not None
            found.append((value, 1 if is_method and not is_static(node) else 0))
        else:
            return None
    return found or None


def _of_bases(call: ast.Call, module: Module, study: Study) -> Iterator[Function]:
    """The method that ``super()`` finds in the bases of the class around a call."""
    around = call_graph.class_around(call, module)
    name = last_name(call.func)
    for base in study.tracer.lineage(around)[1:] if around is not None else ():
        for binding in base.module.table.scopes[base.node].bindings.get(name, ()):
            if isinstance(binding.node, FUNCTIONS):
                yield Function(binding.node, base.module)
            return


def _by_place(place: int, function: Function, study: Study) -> list[Holder]:
    """Who gets what a function is given as an argument of a place, with ``self`` counted.

    Raises:
        Unreadable: what collects arguments gets it, and does not just hand it on.
    """
    node, module = function.node, function.module
    named = [*node.args.posonlyargs, *node.args.args]
    if place < len(named):
        return [_parameter(named[place].arg, function)]
    if node.args.vararg is None:
        return []  # Python refuses such a call: another function is called there
    result: list[Holder] = []
    parents = module.table.parents
    for use in collected.uses(node.args.vararg, node, module):
        star = parents[use]
        call = parents[star]
        functions = _called(call, module, study) if isinstance(call, ast.Call) else None
        if not isinstance(star, ast.Starred) or not isinstance(call, ast.Call) or functions is None:
            raise Unreadable(COLLECTED)
        before = call.args[: call.args.index(star)]
        if any(isinstance(each, ast.Starred) for each in before):
            raise Unreadable(COLLECTED)
        behind = len(before) + place - len(named)
        result += [each for f, own in functions for each in _by_place(behind + own, f, study)]
    return result


def _by_name(name: str, function: Function, study: Study, known: set[ast.AST]) -> list[Holder]:
    """Who gets what a function is given as an argument of a name.

    Raises:
        Unreadable: what collects arguments gets it, and does not just hand it on.
    """
    node, module = function.node, function.module
    if any(each.arg == name for each in (*node.args.args, *node.args.kwonlyargs)):
        return [_parameter(name, function)]
    if node.args.kwarg is None:
        return []  # Python refuses such a call: another function is called there
    if node in known:
        return []
    known.add(node)
    if not collected.is_only_read(node.args.kwarg, node, name, module):
        raise Unreadable(COLLECTED)
    parents = module.table.parents
    result: list[Holder] = []
    for use in collected.uses(node.args.kwarg, node, module):
        parent = parents[use]
        above = parents[parent]
        taken: ast.expr | None = None
        match parent, above:
            case ast.keyword(arg=None), ast.Call():
                functions = _called(above, module, study)
                if functions is None:
                    raise Unreadable(COLLECTED)
                result += [h for f, _ in functions for h in _by_name(name, f, study, known)]
            case (
                ast.Attribute(attr="get" | "pop"),
                ast.Call(args=[ast.Constant(value=key), *_]),
            ) | (ast.Subscript(slice=ast.Constant(value=key)), _):
                taken = of_kind(above if isinstance(parent, ast.Attribute) else parent, ast.expr)
                taken = taken if key == name else None
            case ((ast.Compare() | ast.FormattedValue()), _):
                pass
            case _:
                raise Unreadable(COLLECTED)
        if taken is not None:
            holders = _handed_to(taken, module, study)
            if holders is None:
                raise Unreadable(COLLECTED)
            result += holders
    return result


def _parameter(name: str, function: Function) -> Holder:
    """A parameter that has no other value than its callers give.

    Raises:
        Unreadable: it has.
    """
    scope = function.module.table.scopes[function.node]
    if [b.kind for b in scope.bindings[name]] != [Kind.PARAMETER]:
        raise Unreadable("a parameter that gets it has another value later")
    return Holder(name, scope, function.module)


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
