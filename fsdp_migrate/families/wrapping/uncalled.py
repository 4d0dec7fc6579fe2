"""Functions and classes that nothing in a project calls, and that nobody else can.

In a program that nobody can install, nobody gives a parameter what nothing in sight gives. That is
not so of what is handed on: ``TABLE = {"net": Net}``, ``executor.submit(build, settings)``,
``@register`` and ``getattr(models, name)`` call it in ways that are not followed.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method
from fsdp_migrate.analysis.values import ModuleValue, Unknown
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

# What looks for names of a file that are not written out.
BY_TEXT = frozenset({"globals", "import_module", "__import__", "__subclasses__"})
ASKING = frozenset({"isinstance", "issubclass"})


def is_never_given(value: Unknown, study: Study) -> bool:
    """Whether a value is of a parameter that nobody gives anything."""
    parents = value.module.table.parents
    function = parents.get(parents.get(value.node, value.node))
    if study.published or not value.is_never_given or not isinstance(function, FUNCTIONS):
        return False
    if isinstance(function, ast.Lambda):
        return False
    cls = class_of_method(function, value.module)
    if cls is not None and function.name != "__init__":
        return not _is_handed_on(function, value.module, study)
    return not _is_handed_on(cls or function, value.module, study)


def _is_handed_on(
    definition: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, home: Module, study: Study
) -> bool:
    """Whether something may call a function, or a class, by another name than its own."""
    scope = home.table.scope_of(definition)
    if definition.decorator_list or _is_looked_up(home, study):
        return True
    uses = name_uses.uses_of(definition.name, scope, home, study.project, handed_on=True)
    if uses is None:
        return True
    return any(isinstance(use.ctx, ast.Load) and _hands_on(use, module) for use, module in uses)


def _hands_on(use: ast.expr, module: Module) -> bool:
    """Whether a name is used for more than calls, types and questions."""
    table = module.table
    match table.parents[use]:
        case ast.Call(func=called) if called is use:
            return False
        case ast.Call(func=ast.Name(id=asking)) if asking in ASKING:
            return False
        case ast.Compare() | ast.ClassDef() | ast.arg() | ast.AnnAssign():
            return False
        case ast.Attribute():  # Net.static()
            return False
    return True


def _is_looked_up(home: Module, study: Study) -> bool:
    """Whether names of a file are looked for that are computed."""
    return home in study.cache(_looked_up)


def _looked_up(study: Study) -> frozenset[Module]:
    found: set[Module] = set()
    for module in study.project.modules:
        for call in module.table.calls_by_name.of(BY_TEXT):
            if last_name(call.func) != "globals":
                return frozenset(study.project.modules)
            found.add(module)
        for call in module.table.calls_by_name.of({"getattr", "vars"}):
            for owner in call.args[:1]:
                values = study.values(owner, module)
                found.update(v.target for v in values if isinstance(v, ModuleValue) and v.target)
    return frozenset(found)
