"""What is put into dictionaries item by item: ``self.groups[index] = group["params"]``."""

from __future__ import annotations

import ast
from collections import defaultdict

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.context import Study

Item = tuple[ast.Subscript, ast.expr]


def stored_under(container: ast.expr, module: Module, study: Study) -> list[ast.expr]:
    """The values that are stored into a container, under whatever key, where it has the same name:
    in the same class for what ``self`` has, else in the same function."""
    path = access_path(container)
    if path is None:
        return []
    known = study.cache(_known)
    if module not in known:
        known[module] = _stores(module)
    around = _owner(container, path, module)
    return [v for item, v in known[module].get(path, ()) if _owner(item, path, module) is around]


def _known(study: Study) -> dict[Module, dict[str, list[Item]]]:
    return {}


def _stores(module: Module) -> dict[str, list[Item]]:
    """The items of a module that a statement assigns, by the path of their container."""
    found: dict[str, list[Item]] = defaultdict(list)
    for item in module.table.subscripts:
        statement = module.table.parents[item] if isinstance(item.ctx, ast.Store) else None
        path = access_path(item.value)
        if isinstance(statement, ast.Assign) and path is not None:
            found[path].append((item, statement.value))
    return found


def _owner(node: ast.AST, path: str, module: Module) -> ast.AST | None:
    """The class in which ``self`` has a container, or the function that has it."""
    if path.startswith("self."):
        around = module.table.ancestors(node)
        return next((each for each in around if isinstance(each, ast.ClassDef)), None)
    return module.table.scope_of(node).home().node
