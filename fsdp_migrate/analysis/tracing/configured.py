"""Functions that hydra calls by the names which configurations have: see
``discovery/configurations.py``."""

from __future__ import annotations

import ast
from collections import defaultdict

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

CALLING = frozenset({"hydra.utils.instantiate", "hydra.utils.call"})
# What gives a function, or a class, by its name.
GETTING = frozenset(
    f"hydra.utils.{name}" for name in ("get_method", "get_static_method", "get_class", "get_object")
)
NAMES = tuple(sorted(name.rpartition(".")[2] for name in CALLING | GETTING))


def called_by(call: ast.Call, module: Module, project: Project) -> tuple[list[Function], bool]:
    """The functions that a call of hydra's may call, or give, and whether these are all."""
    gives = bool(project.external(call.func, module) & GETTING)
    named = _names_got(call, project) if gives else names_of(call, project)
    found = [f for name in named if (f := _function(name, module, project)) is not None]
    return found, bool(named) and len(found) == len(named)


def names_of(call: ast.Call, project: Project) -> tuple[str, ...]:
    """The names that configurations have where a call of hydra's looks: below the last key of
    what it is given."""
    given = call.args[0] if call.args else None
    key = last_name(given) if given is not None else ""
    match given:
        case ast.Subscript(slice=ast.Constant(value=str(text))):
            key = text
    return project.library.configured.get(key, ()) if key else ()


def _names_got(call: ast.Call, project: Project) -> tuple[str, ...]:
    """The names by which a call of hydra's gets a function: the one that is written there, or those
    that configurations have behind the key."""
    match call.args[:1]:
        case [ast.Constant(value=str(name))]:
            return (name,)
        case [ast.Attribute(value=owner, attr="_target_")]:
            return project.library.configured.get(last_name(owner), ())
        case [ast.Subscript(value=owner, slice=ast.Constant(value="_target_"))]:
            return project.library.configured.get(last_name(owner), ())
        case [ast.Subscript(slice=ast.Constant(value=str(key)))]:
            return project.library.configured.get(f"{key}:", ())
        case [given] if last_name(given):
            return project.library.configured.get(f"{last_name(given)}:", ())
    return ()


def calls_by_function(
    index: ProjectIndex, project: Project
) -> dict[ast.AST, list[tuple[ast.Call, Module]]]:
    """The calls of hydra's that may call a function, or give it, by each that one may."""
    found: dict[ast.AST, list[tuple[ast.Call, Module]]] = defaultdict(list)
    for call, module in index.calls_named(*NAMES) if project.mentions("hydra") else ():
        if project.external(call.func, module) & (CALLING | GETTING):
            for function in called_by(call, module, project)[0]:
                found[function.node].append((call, module))
    return found


def _function(name: str, module: Module, project: Project) -> Function | None:
    """The function of the project that has a dotted name."""
    found = project.resolve(name, module) if name else None
    if found is None or not found[1] or "." in found[1]:
        return None
    for where, binding in project.exports(*found):
        if isinstance(binding.node, FUNCTIONS):
            return Function(binding.node, where)
    return None
