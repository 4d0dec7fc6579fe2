"""Guards that would stop an import, and with it programs that make none of the models concerned."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.migration.guard_place import DEFINITIONS, Nowhere
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision

Place = tuple[ast.AST, Module]


def check(decision: Decision, statement: ast.stmt, study: Study) -> None:
    """Refuse what runs when a module is imported, unless that is what makes the model.

    A function that is called while a file is loaded runs then as well: ``Own.override()`` below
    the class. A file that nobody imports is a script, which is run for what it does.
    """
    module = decision.site.module
    here = _loading((statement, module), study)
    if _function_around(statement, module) is not None:
        here = {each for each in here if study.project.roots.is_imported(each)}
    if not here:
        return
    made = {m for c in decision.models for place in _makers(c) for m in _loading(place, study)}
    if not here <= made:
        raise Nowhere("it runs when the module is imported")


def _makers(constructor: Constructor) -> list[Place]:
    """Where models are made: the definition of a class derived from FSDP1 makes none."""
    if constructor.defined_by is not None:
        return list(constructor.made_at)
    return [(constructor.call, constructor.module)]


def _loading(place: Place, study: Study) -> set[Module]:
    """The modules that run a place while they are loaded, themselves or by what they call."""
    found: set[Module] = set()
    known: set[ast.AST] = set()
    places = [place]
    while places:
        node, module = places.pop()
        function = _function_around(node, module)
        if function is None:
            if not any(map(_asks_for_name, (node, *module.table.ancestors(node)))):
                found.add(module)
        elif function not in known and isinstance(function, DEFINITIONS):
            known.add(function)
            places += [(c.call, c.module) for c in study.tracer.callers(function, module)]
    return found


def _asks_for_name(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _function_around(node: ast.AST, module: Module) -> ast.AST | None:
    return next(
        (a for a in module.table.ancestors(node) if isinstance(a, (*DEFINITIONS, ast.Lambda))), None
    )
