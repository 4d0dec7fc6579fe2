"""Which files of a project may run in one program."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.context import Study


def can_meet(module: Module, other: Module, study: Study) -> bool:
    """Whether two modules may run in one program: a script runs only with what it imports."""
    if module is other or not _is_script(module):
        return True
    importers = [m for m in study.project.modules if module in imported(m, study)]
    return other in importers or any(other in imported(m, study) for m in (module, *importers))


def _is_script(module: Module) -> bool:
    return any(
        isinstance(statement, ast.If) and "__main__" in ast.unparse(statement.test)
        for statement in module.source.tree.body
    )


def imported(module: Module, study: Study) -> set[Module]:
    """The modules of the project that one imports, however indirectly."""
    known = study.cache(_import_sets)
    if module in known:
        return known[module]
    found = known[module] = set()
    waiting = [module]
    while waiting:
        importer = waiting.pop()
        names = {b.qualified for b in importer.table.imports}
        names.update(star for _, star in importer.table.stars)
        for name in names:
            resolved = study.project.resolve(name, importer)
            if resolved is not None and resolved[0] not in found:
                found.add(resolved[0])
                waiting.append(resolved[0])
    return found


def _import_sets(study: Study) -> dict[Module, set[Module]]:
    return {}
