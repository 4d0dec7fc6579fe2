"""Code that tells wrappers by their classes, and takes them off.

``while isinstance(m, (FSDP, DDP)): m = m.module``, or ``return unwrap(m.module)`` in a function
``unwrap`` that asks it. FSDP2 wraps nothing. With ``FSDPModule`` for ``FSDP`` there, this would go
on forever, or ask a model for a module it has not: what is taken off are the other wrappers alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_static
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.conditions import leaves
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of, walk

INNER = frozenset({"module", "_fsdp_wrapped_module"})
LEAVING = (ast.Return, ast.Raise, ast.Break, ast.Continue)
SIMPLE = (ast.Assign, ast.Return, ast.Expr, ast.Continue, ast.Pass)


@dataclass(frozen=True, eq=False)
class Unwrapping:
    """What runs where ``isinstance(m, ...)`` in the condition of ``holder`` says yes.

    ``again``: what was inside is asked in turn, by a loop or by recursion. ``alone``: nothing else
    is done there. One of them is so.
    """

    holder: ast.While | ast.If | ast.IfExp
    arm: Sequence[ast.stmt] | Sequence[ast.expr]
    again: bool
    alone: bool


def of(check: ast.AST, module: Module, tracer: Tracer) -> Unwrapping | None:
    """What takes wrappers off, if ``check`` is ``isinstance(m, ...)`` in its condition."""
    if not isinstance(check, ast.Call) or not check.args:
        return None
    path = access_path(check.args[0])
    holder, negated = _holder(check, module)
    arm = _arm(holder, negated, module) if holder is not None else ()
    if path is None or holder is None or not arm:
        return None
    if isinstance(holder, ast.IfExp) and holder.test is check and _is_inner(arm[0], path):
        return Unwrapping(holder, arm, False, True) if _is_path(holder.orelse, path) else None
    run = _run_for_models(arm, path, module, tracer)
    taken = [
        s
        for s in run
        if isinstance(s, ast.Assign)
        and _is_inner(_value_for_models(s.value, path, module, tracer), path)
    ]
    stored = any(_is_path(t, path) for s in taken for t in s.targets)
    calls = [c for s in run for c in walk(s) if isinstance(c, ast.Call)]
    back = [c for c in calls if _is_given_inner(c, path, taken) or stored]
    back = [c for c in back if _comes_back(c, path, taken, module, tracer)]
    simple = all(isinstance(s, SIMPLE) for s in run)
    last = run[-1] if run else None
    if back:
        goes_on = isinstance(last, ast.Expr) and not getattr(holder, "orelse", None)
        alone = isinstance(holder, ast.IfExp) or (simple and not goes_on)
        return Unwrapping(holder, arm, True, alone and calls == back)
    if isinstance(holder, ast.While):
        if isinstance(last, (ast.Return, ast.Raise, ast.Break)):
            return None  # it ends there, with what is the model itself
        anywhere = [t for n in walk(holder) if isinstance(n, ast.Assign) for t in n.targets]
        rest = [s for s in run if not isinstance(s, (ast.Continue, ast.Pass))]
        alone = stored and len(rest) == 1 and not holder.orelse
        again = any(_is_path(t, path) for t in anywhere)
        return Unwrapping(holder, arm, True, alone) if again else None
    if not stored:
        return None
    again = _is_in_loop(holder, module) and not isinstance(last, (ast.Return, ast.Break))
    alone = simple and not calls
    if again or (alone and len(run) == 1 and holder.test is check and not holder.orelse):
        return Unwrapping(holder, arm, again, alone)
    return None


def _holder(check: ast.expr, module: Module) -> tuple[ast.While | ast.If | ast.IfExp | None, bool]:
    """What a test is a condition of, or a part of one, and whether it is negated there."""
    child, negated = check, False
    while True:
        match module.table.parents[child]:
            case ast.UnaryOp(op=ast.Not()) as child:
                negated = not negated
            case ast.BoolOp() as child:
                pass
            case ast.While() | ast.If() | ast.IfExp() as holder if holder.test is child:
                return holder, negated
            case _:
                return None, negated


def _arm(
    holder: ast.While | ast.If | ast.IfExp, negated: bool, module: Module
) -> Sequence[ast.stmt] | Sequence[ast.expr]:
    """What runs where a test that ``holder`` has holds."""
    if isinstance(holder, ast.IfExp):
        return [holder.orelse if negated else holder.body]
    if not negated:
        return holder.body
    if isinstance(holder, ast.While) or holder.orelse:
        return holder.orelse
    block = block_of(module.table.parents[holder], holder)
    return block[block.index(holder) + 1 :] if leaves(holder.body) else []


def _run_for_models(
    arm: Sequence[ast.AST], path: str, module: Module, tracer: Tracer
) -> list[ast.AST]:
    """What of an arm runs for an FSDP1 model, where tests of classes in it tell."""
    found: list[ast.AST] = []
    for statement in arm:
        answer = None
        if isinstance(statement, ast.If):
            answer = _answer_for_models(statement.test, path, module, tracer)
        if isinstance(statement, ast.If) and answer is not None:
            taken = statement.body if answer else statement.orelse
            found += _run_for_models(taken, path, module, tracer)
        else:
            found.append(statement)
        if found and isinstance(found[-1], LEAVING):
            break
    return found


def _value_for_models(node: ast.expr, path: str, module: Module, tracer: Tracer) -> ast.expr:
    """What an expression is for an FSDP1 model, where tests of classes in it tell."""
    while isinstance(node, ast.IfExp):
        answer = _answer_for_models(node.test, path, module, tracer)
        if answer is None:
            break
        node = node.body if answer else node.orelse
    return node


def _answer_for_models(test: ast.expr, path: str, module: Module, tracer: Tracer) -> bool | None:
    """What a test says of ``m`` where that is an FSDP1 model; None where it may say either."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            answer = _answer_for_models(inner, path, module, tracer)
            return None if answer is None else not answer
        case ast.BoolOp(op=op, values=parts):
            decisive = isinstance(op, ast.Or)
            answers = {_answer_for_models(each, path, module, tracer) for each in parts}
            return decisive if decisive in answers else None if None in answers else not decisive
        case ast.Call(func=ast.Name(id="isinstance"), args=[asked, classes]):
            if not _is_path(asked, path):
                return None
            each = type_expressions.classes(classes)
            return any(_is_fsdp1s(one, module, tracer) for one in each)
        case ast.Call(func=ast.Name(id="hasattr"), args=[asked, ast.Constant(value=name)]):
            return True if _is_path(asked, path) and name in INNER else None
    return None


def _is_fsdp1s(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    return fsdp1.FSDP in map(fsdp1.canonical, tracer.project.external(node, module))


def _is_path(node: ast.AST, path: str) -> bool:
    return isinstance(node, ast.expr) and access_path(node) == path


def _is_inner(node: ast.AST, path: str) -> bool:
    """Whether a node is ``m.module``."""
    return isinstance(node, ast.Attribute) and node.attr in INNER and _is_path(node.value, path)


def _is_in_loop(node: ast.AST, module: Module) -> bool:
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.While, *FUNCTIONS)):
            return isinstance(parent, ast.While)
    return False


# -- recursion --------------------------------------------------------


def _given(call: ast.Call) -> Iterator[tuple[int | str | None, ast.expr]]:
    """The arguments of a call, each with its place or name."""
    yield from enumerate(call.args)
    yield from ((k.arg, k.value) for k in call.keywords)


def _is_given_inner(call: ast.Call, path: str, taken: Sequence[ast.Assign]) -> bool:
    return any(_means_inner(value, path, taken) for _, value in _given(call))


def _means_inner(value: ast.expr, path: str, taken: Sequence[ast.Assign]) -> bool:
    """Whether an argument is ``m.module``, or a name that was assigned it."""
    named = any(_is_path(value, access_path(t) or "") for s in taken for t in s.targets)
    return named or _is_inner(value, path)


def _comes_back(
    call: ast.Call, path: str, taken: Sequence[ast.Assign], module: Module, tracer: Tracer
) -> bool:
    """Whether a call gets to the function that it stands in, with what was inside the wrapper."""
    function = next((p for p in module.table.ancestors(call) if isinstance(p, FUNCTIONS)), None)
    if function is None:
        return False
    places = {place for place, value in _given(call) if _means_inner(value, path, taken)}
    waiting = [(call, module, places)]
    seen: set[ast.AST] = set()
    for each, where, given in waiting:
        for value in tracer.evaluate(each.func, where):
            if not isinstance(value, Function) or value.node in seen:
                continue
            if value.node is function:
                return True
            seen.add(value.node)
            for place in given:
                name = _parameter(place, each, value)
                waiting += _handed_on(name, value, tracer) if name is not None else ()
    return False


def _parameter(place: int | str | None, call: ast.Call, function: Function) -> str | None:
    """The parameter that gets an argument."""
    if not isinstance(place, int):
        return place
    node = function.node
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    method = class_of_method(node, function.module) is not None and not is_static(node)
    place += method and isinstance(call.func, ast.Attribute)
    return names[place] if place < len(names) else None


def _handed_on(
    name: str, function: Function, tracer: Tracer
) -> Iterator[tuple[ast.Call, Module, set[int | str | None]]]:
    """The calls that get a parameter of a function as it is, or as it will be without FSDP1."""
    for call in walk(function.node):
        if isinstance(call, ast.Call):
            places = {
                place
                for place, value in _given(call)
                if _is_path(value, name)
                or (_is_inner(value, name) and _is_under_test(value, function.module, tracer))
            }
            if places:
                yield call, function.module, places


def _is_under_test(inner: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether ``m.module`` stands where ``m`` was found to be an FSDP1 model."""
    path = access_path(of_kind(inner, ast.Attribute).value)
    for check in module.table.calls_by_name.named("isinstance"):
        if len(check.args) != 2 or access_path(check.args[0]) != path:
            continue
        each = type_expressions.classes(check.args[1])
        holder, negated = _holder(check, module)
        if holder is None or not any(_is_fsdp1s(e, module, tracer) for e in each):
            continue
        if _is_in(inner, _arm(holder, negated, module)):
            return True
    return False


def comes_back(inner: ast.Attribute, module: Module, tracer: Tracer) -> bool:
    """Whether ``m.module`` is given to a call that gets to the function that it stands in, or
    assigned to ``m`` in a loop."""
    path, call = access_path(inner.value), module.table.parents[inner]
    if isinstance(call, ast.Assign) and any(_is_path(t, path or "") for t in call.targets):
        return _is_in_loop(call, module)
    call = module.table.parents[call] if isinstance(call, ast.keyword) else call
    if path is None or not isinstance(call, ast.Call) or call.func is inner:
        return False
    return _comes_back(call, path, (), module, tracer)


# -- what is asked of it --------------------------------------------------------


def is_taken_off_again(inner: ast.Attribute, module: Module, tracer: Tracer) -> bool:
    """Whether ``m.module`` stands where wrappers are taken off one by one, by their classes."""
    path = access_path(inner.value)
    for check in module.table.calls_by_name.named("isinstance"):
        if check.args and access_path(check.args[0]) == path:
            found = of(check, module, tracer)
            if found is not None and found.again and _is_in(inner, found.arm):
                return True
    return False


def goes_inside(asked: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether the function around takes FSDP1's wrapper off ``asked`` and asks the module inside in
    turn: what it does with a model is what it does with that module."""
    path, here = access_path(asked), module.table.scope_of(asked).function()
    for check in module.table.calls_by_name.named("isinstance") if path is not None else ():
        if len(check.args) != 2 or access_path(check.args[0]) != path:
            continue
        if module.table.scope_of(check).function() is not here:
            continue
        if any(_is_fsdp1s(e, module, tracer) for e in type_expressions.classes(check.args[1])):
            found = of(check, module, tracer)
            if found is not None and found.again:
                return True
    return False


def _is_in(node: ast.AST, arm: Sequence[ast.AST]) -> bool:
    return any(node is each for part in arm for each in walk(part))


def takes_off(check: ast.AST, module: Module, tracer: Tracer) -> bool:
    """Whether what ``isinstance`` says yes to loses a wrapper."""
    return of(check, module, tracer) is not None


def others(check: ast.Call, reference: ast.AST) -> list[ast.expr]:
    """The other classes that ``isinstance(m, (FSDP, DDP))`` asks for."""
    return [each for each in type_expressions.classes(check.args[1]) if each is not reference]


def listed_for(node: ast.expr, module: Module) -> list[ast.Call]:
    """The ``isinstance`` calls that some classes are for, if they are for nothing else but types.

    ``WRAPPERS = (FSDP, DDP)``, ``WRAPPERS += (FSDP,)``, ``def unwrap(m, classes=(FSDP, DDP))``,
    ``Wrapped = FSDP | DDP``, ``Wrapped = Union[FSDP, DDP]``.
    """
    table = module.table
    holder = classes_around(node, module)
    if holder is None:
        return []
    parent = table.parents[holder]
    match parent:
        case (
            ast.Assign(targets=[ast.Name() as target]) | ast.AugAssign(target=ast.Name() as target)
        ):
            name, scope = target.id, table.scope_of(target).lookup(target.id)
        case ast.arguments():
            function = table.parents[parent]
            positional = [*parent.posonlyargs, *parent.args]
            given = dict(zip(reversed(parent.defaults), reversed(positional), strict=False))
            given |= {d: a for d, a in zip(parent.kw_defaults, parent.kwonlyargs, strict=True) if d}
            if holder not in given or function not in table.scopes:
                return []
            name, scope = given[holder].arg, table.scopes[function]
        case _:
            return []
    found: list[ast.Call] = []
    for use in table.names:
        same = use.id == name and table.within[use].lookup(name) is scope
        if not same or not isinstance(use.ctx, ast.Load):
            continue
        match table.parents[use]:
            case (
                ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, classes]) as check
            ):
                if classes is not use:
                    return []
                found.append(check)
            case ast.BinOp(op=ast.Add()) as longer:
                held = table.parents[longer]
                targets = held.targets if isinstance(held, ast.Assign) else []
                if not any(isinstance(t, ast.Name) and t.id == name for t in targets):
                    return []
            case _ if not type_expressions.is_type(use, table):
                return []
    return found


def classes_around(node: ast.expr, module: Module) -> ast.expr | None:
    """The tuple or union of classes that ``node`` is one of."""
    table = module.table
    holder: ast.AST = node
    above = table.parents[holder]
    while isinstance(above, ast.BinOp) and isinstance(above.op, ast.BitOr):
        holder, above = above, table.parents[above]
    if isinstance(above, ast.Tuple):
        holder, above = above, table.parents[above]
    if isinstance(above, ast.Subscript) and type_expressions.is_generic(above.value, table):
        holder = above
    holder = of_kind(holder, ast.expr)
    return holder if holder is not node else None
