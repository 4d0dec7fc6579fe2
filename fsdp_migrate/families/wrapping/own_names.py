"""A wrapped module by the name that it had before: ``net`` of ``model = FSDP(net)``.

FSDP1's wrapper was another object, and the module inside had its parameters in pieces. After
``fully_shard(net)`` the module itself is the model. Either way what is asked of ``net`` behind the
wrap is asked of what is sharded.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.enclosing_models import class_of
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

DEPTH = 3  # calls that the name is handed on by


def wrapped_by_now(
    node: ast.expr, module: Module, study: Study, depth: int = DEPTH
) -> frozenset[Constructor]:
    """The constructors that have wrapped what ``node`` names when it is asked, here or where a
    function around it is called with that."""
    known = study.cache(_wraps_by_name)
    path = access_path(node) if known else None
    if path is None:
        return frozenset()
    found = {
        constructor
        for call in known.get((module, path), ())
        for constructor in _made_by(call, module, study)
        if is_wrapped_before(node, call, path, module, study)
        and not study.narrowing.is_never_met(call, module, node, module)
    }
    if found or not depth or not isinstance(node, ast.Name):
        return frozenset(found)
    for given, where in _given(node, module, study):
        if access_path(given) is not None and not study.traced(given, where):
            found |= wrapped_by_now(given, where, study, depth - 1)
    return frozenset(found)


def is_wrapped_before(
    node: ast.expr, call: ast.Call, path: str, module: Module, study: Study
) -> bool:
    """Whether ``node`` is what a call above was given, at ``path``: of the same definitions, or an
    attribute that a method of the same class wraps first of all."""
    here, there = enclosing_function(module, node), enclosing_function(module, call)
    if here is there:
        wrapped = next((a for a in _arguments(call) if access_path(a) == path), None)
        if wrapped is None or not _is_above(call, node):
            return False
        first = definitions(node, module)
        return bool(first) and first == definitions(wrapped, module)
    owner, other = class_of(node, module), class_of(call, module)
    if not path.startswith("self.") or owner is None or other is None:
        return False
    if _is_given_back(call, path, module):
        return False  # self.net = FSDP(self.net): what the name is later is the model itself
    if owner.node is not other.node or getattr(there, "name", "") != "__init__":
        return False
    moment = study.tracer.moment(node, module)  # a method that runs above the wrap alone
    return moment is None or not moment.precedes(module.table.statement(call), module)


def _is_given_back(call: ast.Call, path: str, module: Module) -> bool:
    """Whether what a call gives takes the place of what it was given."""
    statement = module.table.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return path in map(access_path, targets)


def _wraps_by_name(study: Study) -> dict[tuple[Module, str], list[ast.Call]]:
    """The calls that wrap what has a name: constructors, and calls of functions that give back a
    model of what they are given."""
    found: dict[tuple[Module, str], list[ast.Call]] = defaultdict(list)
    for constructor in study.constructors.values():
        if not constructor.has_module:
            continue
        wrapped, module = constructor.wrapped, constructor.module
        path = access_path(wrapped)
        if path is not None:
            found[module, path].append(constructor.call)
        function = enclosing_function(module, wrapped)
        if not isinstance(wrapped, ast.Name) or not isinstance(function, FUNCTIONS):
            continue
        for given, where in _given(wrapped, module, study):
            path = access_path(given)
            call = where.table.parents[given]
            call = where.table.parents[call] if isinstance(call, ast.keyword) else call
            if path is not None and isinstance(call, ast.Call) and study.traced(call, where):
                found[where, path].append(call)
    return dict(found)


def _made_by(call: ast.Call, module: Module, study: Study) -> Iterator[Constructor]:
    if call in study.constructors:
        yield study.constructors[call]
    else:
        yield from study.models(call, module).constructors


def _given(name: ast.Name, module: Module, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What the calls of a function give to its parameter."""
    function = enclosing_function(module, name)
    kinds = {d.kind for d in study.defined_by(name, module)}
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    if kinds == {Kind.PARAMETER}:
        for caller in study.tracer.callers(function, module):
            given = caller.argument(function, name.id)
            if given is not None:
                yield given, caller.module


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_above(call: ast.Call, node: ast.expr) -> bool:
    return (call.end_lineno or call.lineno, call.end_col_offset or 0) <= (
        node.lineno,
        node.col_offset,
    )
