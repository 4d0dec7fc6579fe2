"""Which calls wrap a model, or a part of it, behind a statement of the same scope."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.wrapping import part_paths
from fsdp_migrate.fsdp1 import model_values
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import FUNCTIONS


def function_scope(node: ast.AST, module: Module) -> Scope:
    """The scope of the function around ``node``, or of the module."""
    return module.table.scope_of(node).function() or module.table.module


def later_wraps(model: ast.expr, before: ast.stmt, module: Module, study: Study) -> list[ast.Call]:
    """The calls behind a statement of the same scope that wrap what is no FSDP model there yet, a
    part of it, or what it is a part of; in order."""
    path = access_path(model)
    if path is None or study.models(model, module):
        return []
    scope = function_scope(model, module)
    order = module.flow(scope).order
    found = {
        call: order[statement]
        for call in wrapping_calls(model, path, scope, module, study)
        if (statement := module.table.statement(call)) in order
    }
    first = order.get(before, 1 << 30)
    later = [
        call
        for call, place in found.items()
        if place > first
        and not _in_other_arm(before, call, module)
        and not study.narrowing.is_never_met(call, module, model, module)
    ]
    return sorted(later, key=lambda call: found[call])


def _in_other_arm(one: ast.AST, other: ast.AST, module: Module) -> bool:
    """Whether two nodes stand in different arms of a condition, of which one runs."""
    table = module.table
    above = [other, *table.ancestors(other)]
    child = one
    for parent in table.ancestors(one):
        if isinstance(parent, (ast.If, ast.Match)) and parent in above:
            beside = above[above.index(parent) - 1]
            arms = (parent.body, parent.orelse) if isinstance(parent, ast.If) else ()
            if isinstance(parent, ast.Match):
                return beside is not child
            if {(child in arm, beside in arm) for arm in arms} == {(True, False), (False, True)}:
                return True
        child = parent
    return False


def wrapping_calls(
    model: ast.expr, path: str, scope: Scope, module: Module, study: Study
) -> Iterator[ast.Call]:
    """Calls in a scope that turn a model, at ``path``, into an FSDP model, or a part of it, or what
    it is a part of."""
    leading = study.cache(_calls_that_wrap)
    for call in module.table.own_calls.get(scope, ()):
        own = module.table.within[call]
        if own is not scope and own.function() is None:
            continue  # in a class's body
        if call in study.constructors:
            wrapped = study.constructors[call].arguments.get("module")
            if wrapped is not None and access_path(wrapped) == path:
                yield call
                continue
        elif path in module.given_paths[call]:
            callees = study.values(call.func, module)
            if any(isinstance(v, (Function, Class)) for v in callees) and (
                model_values.models(study.values(call, module), study.tracer)
                and not _is_beside_model(path, call, module, study)
                and (call in leading or not _is_handed_back(path, call, module, study))
            ):
                yield call
                continue
        led_to = _constructors(leading.get(call, ()), study)
        if any(_share(model, constructor, module, study) for constructor in led_to):
            yield call


def _is_beside_model(path: str, call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call that wraps is given something at ``path`` beside the model that it wraps, such
    as ``self.config`` of ``shard(model, self.config)``."""
    wrapped = {
        value
        for constructor in study.models(call, module).constructors
        if constructor.has_module
        for value in study.values(constructor.wrapped, constructor.module)
    }
    given = given_arguments(call)
    found = {access_path(a) for a in given if not wrapped.isdisjoint(study.values(a, module))}
    return bool(found) and path not in found


def _is_handed_back(path: str, call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call gives no other models than it is given at ``path``: ``unwrap(model)``."""
    given = [a for a in given_arguments(call) if access_path(a) == path]
    known = frozenset[Constructor]().union(*(study.models(a, module).constructors for a in given))
    return study.models(call, module).constructors <= known


def wrapping_constructors(wrap: ast.Call, module: Module, study: Study) -> frozenset[Constructor]:
    """The constructors that a call of :func:`wrapping_calls` leads to."""
    if wrap in study.constructors:
        return frozenset(study.settings_of(study.constructors[wrap]))
    returned = study.models(wrap, module).constructors
    led_to = _constructors(study.cache(_calls_that_wrap).get(wrap, ()), study)
    return returned or frozenset(led_to)


def _constructors(nodes: Iterable[ast.AST], study: Study) -> Iterator[Constructor]:
    """What nodes are in this form: each form makes its own constructors of them."""
    return (study.constructors[node] for node in nodes if node in study.constructors)


def _calls_that_wrap(study: Study) -> dict[ast.Call, set[ast.AST]]:
    """The constructors' nodes that run where a call does: itself, or in the functions it leads
    to."""
    found: dict[ast.Call, set[ast.AST]] = {}
    for constructor in study.constructors.values():
        if not constructor.has_module:
            continue
        waiting = [(constructor.call, constructor.module)]
        functions: set[ast.AST] = set()
        for call, module in waiting:
            found.setdefault(call, set()).add(constructor.node)
            function = enclosing_function(module, call)
            if isinstance(function, FUNCTIONS) and function not in functions:
                functions.add(function)
                waiting += [(c.call, c.module) for c in study.tracer.callers(function, module)]
    return found


def _share(model: ast.expr, constructor: Constructor, module: Module, study: Study) -> bool:
    """Whether a model surely has parameters in common with what a constructor wraps."""
    function = enclosing_function(module, model)
    ways = part_paths.places(model, module, study)
    others = part_paths.places(constructor.wrapped, constructor.module, study)
    return any(
        part_paths.is_one_object(value, function, module, study)
        for value in part_paths.shared(ways, others)
    )
