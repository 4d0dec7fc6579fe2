"""Every place of a project that may use what a name is given in one of its files."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis import executed_files
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import asks_for_main

Use = ast.Name | ast.Attribute


def uses_of(
    name: str, scope: Scope, home: Module, project: Project, *, handed_on: bool = False
) -> list[tuple[Use, Module]] | None:
    """The uses of ``name`` as ``scope`` of the file ``home`` has it, those that bind it among them.

    An attribute of that name counts, whatever it is an attribute of. None if some use may not be
    seen: an import that renames it, one that only hands it on, a string that says it, such as one
    of ``__all__``, text that is executed and may give it another value.

    Args:
        handed_on: imports may hand it on, under its name, to whoever imports it from there, and
            ``__all__`` may say so.
    """
    found: list[tuple[Use, Module]] = []
    for module in project.read if scope is home.table.module or scope.is_class else [home]:
        if not module.mentions(name):
            continue
        table = module.table
        said = [string for string in table.strings if string.value == name]
        if handed_on:
            said = [string for string in said if string not in _offered(module)]
        if said or any(_renamed(name, module)):
            return None
        if _is_set_by_text(name, scope, module, home, project):
            return None
        names = [n for n in table.names_by_id.named(name) if _means(n, scope, module, home)]
        is_program = any(map(asks_for_main, module.source.tree.body))  # which hands nothing on
        imports = any(binding.name == name for binding in table.imports)
        if imports and not (names or handed_on or is_program):
            return None
        found += [(each, module) for each in names]
        if not scope.is_function:
            found += [(attribute, module) for attribute in table.attributes_by_name.named(name)]
    return found


def _is_set_by_text(
    name: str, scope: Scope, module: Module, home: Module, project: Project
) -> bool:
    """Whether executed text may give a name of a file another value, where it is imported too."""
    if scope is not home.table.module or not module.setting_names:
        return False
    given = scope.bindings[name] if module is home else module.table.module.bindings.get(name, ())
    return any(executed_files.setter(name, b.value or b.node, module, project) for b in given)


def _offered(module: Module) -> set[ast.AST]:
    """What ``__all__`` of a file lists."""
    listed = module.table.module.bindings.get("__all__", ())
    return {n for binding in listed if binding.value for n in ast.walk(binding.value)}


def _renamed(name: str, module: Module) -> Iterator[bool]:
    """For every import of a name, whether it gives it another one."""
    for statement in module.table.import_statements:
        yield from (a.name == name and a.asname not in (None, name) for a in statement.names)


def _means(use: ast.Name, scope: Scope, module: Module, home: Module) -> bool:
    """Whether a name may mean what the scope has by it."""
    meant = module.table.within[use].lookup(use.id)
    if module is home:
        return meant is scope
    if meant is None:
        return bool(module.table.stars)
    return any(isinstance(binding.node, ast.alias) for binding in meant.bindings[use.id])
