"""Imports whose name the file gives something else before anybody can use it."""

from __future__ import annotations

import ast
from typing import TypeGuard

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import block_of


def is_bound_anew(name: str, statement: ast.stmt, module: Module, study: Study) -> bool:
    """Whether a definition or assignment further down in the same run of statements binds the name
    of an import, and nothing in between may use it."""
    has_word = module.table.has_word  # for ``globals()[...]`` and quoted types
    asked_early = _is_asked_early(name, module, study)
    block = block_of(module.table.parents[statement], statement)
    waiting = False  # a function that asks for the name when it is called
    for other in block[block.index(statement) + 1 :]:
        value = _bound_to(name, other)
        if waiting and not _only_defines(other):
            return False
        if value is not None:
            return not any(has_word(name, part) for part in value)
        if asked_early and _may_come_back(other, module):
            return False
        if has_word(name, other):
            if not _only_defines(other) or any(has_word(name, part) for part in _header(other)):
                return False
            waiting = True
    return False


def _header(statement: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.AST]:
    """What is evaluated where a function is defined."""
    given = [statement.args, *statement.decorator_list]
    return [*given, statement.returns] if statement.returns is not None else given


def _only_defines(statement: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Whether a statement defines a function, and calls none."""
    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    called = any(isinstance(n, ast.Call) for part in _header(statement) for n in ast.walk(part))
    return not called and not statement.decorator_list


def _bound_to(name: str, statement: ast.stmt) -> list[ast.AST] | None:
    """What is evaluated while a statement surely binds a name; None if it does not bind it."""
    match statement:
        case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) if bound == name:
            return _header(statement)
        case ast.ClassDef(name=bound) if bound == name:
            bases = [*statement.bases, *(keyword.value for keyword in statement.keywords)]
            return [*bases, *statement.decorator_list, *statement.body]
        case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
            return [value]
        case ast.AnnAssign(target=ast.Name(id=bound), value=ast.expr() as value) if bound == name:
            return [value, statement.annotation]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            here = {a.asname or a.name.partition(".")[0] for a in names}
            return [] if name in here else None
    return None


def _may_come_back(statement: ast.stmt, module: Module) -> bool:
    """Whether other files may be loaded, which may import this one."""
    return any(
        statement is each
        for node in module.table.import_statements
        for each in (node, *module.table.ancestors(node))
    )


def _is_asked_early(name: str, module: Module, study: Study) -> bool:
    """Whether another file takes the name while it is loaded itself."""
    if name not in study.project.asked_for(module):
        return False
    for importer in study.project.modules:
        if not importer.mentions(name):
            continue
        for binding in importer.table.imports:
            resolved = study.project.resolve(binding.qualified, importer)
            if resolved == (module, name) and not binding.scope.is_function:
                return True
    return False
