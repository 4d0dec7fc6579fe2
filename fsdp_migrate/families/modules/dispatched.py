"""Functions that choose by the class of their first argument: ``functools.singledispatch``.

What is registered for ``Net`` did not run for FSDP1's wrapper of a ``Net``, and runs for a ``Net``
that ``fully_shard`` has sharded, whose class is derived from it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

DISPATCHERS = frozenset({"functools.singledispatch", "functools.singledispatchmethod"})
Registered = Mapping[str, list[tuple[ast.expr, Module]]]


def dispatched_calls(
    study: Study, module: Module
) -> Iterator[tuple[ast.Call, ast.expr, list[tuple[ast.expr, Module]]]]:
    """The calls of such functions, each with what is chosen by and the classes that are registered,
    with their files."""
    registered = study.cache(_registered)
    for call in module.table.calls_by_name.of(registered) if registered else ():
        if call.args and not _is_another(call, module, study):
            yield call, call.args[0], registered[last_name(call.func)]


def _is_another(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether what is called is surely another function of this name."""
    called = study.values(call.func, module)
    return bool(called) and all(
        isinstance(value, Function) and not _chooses(value.node, value.module, study)
        for value in called
    )


def _registered(study: Study) -> Registered:
    """The classes for which something is registered, by the name of the function that chooses."""
    found: dict[str, list[tuple[ast.expr, Module]]] = defaultdict(list)
    choosing = {name for module in study.project.modules for name in _choosing(module, study)}
    for module in study.project.modules if choosing else ():
        for register in module.table.attributes_by_name.named("register"):
            name = last_name(register.value)
            if name in choosing:
                found[name] += [(each, module) for each in _classes(register, module)]
    return found


def _choosing(module: Module, study: Study) -> Iterator[str]:
    for scope in module.table.scopes:
        if _chooses(scope, module, study):
            yield getattr(scope, "name", "")


def _chooses(function: ast.AST, module: Module, study: Study) -> bool:
    return isinstance(function, FUNCTIONS) and any(
        DISPATCHERS & study.external(decorator, module)
        for decorator in getattr(function, "decorator_list", ())
    )


def _classes(register: ast.Attribute, module: Module) -> Iterator[ast.expr]:
    """``Net`` of ``@scale.register(Net)``, of ``scale.register(Net, function)``, and of
    ``@scale.register`` above a function whose parameter is annotated with it."""
    parent = module.table.parents[register]
    if isinstance(parent, ast.Call) and parent.func is register:
        yield from parent.args[:1]
    elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = [*parent.args.posonlyargs, *parent.args.args]
        yield from (a.annotation for a in arguments if a.annotation is not None)
