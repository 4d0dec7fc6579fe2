"""Parts of a model that a loop goes over, by the model that they are parts of.

``part`` of ``for name, part in model.named_modules()``, and of a list that such a loop has filled.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.project_index import ADDING
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.scopes import Kind

SUBMODULES = frozenset({"modules", "named_modules", "children", "named_children"})


def looped_over(node: ast.expr, module: Module, study: Study) -> Iterator[ast.expr]:
    """``model`` of ``for name, part in model.named_modules()``, for ``part``."""
    if not isinstance(node, ast.Name):
        return
    for definition in study.defined_by(node, module):
        given = definition.value if definition.kind is Kind.ELEMENT else None
        values = [given, *(d.value for d in study.defined_by(given, module))] if given else []
        for value in values:
            method = value.func if isinstance(value, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in SUBMODULES:
                yield method.value


def kept_of(node: ast.expr, module: Module, study: Study) -> Iterator[ast.expr]:
    """``model`` for ``part`` of ``for part in self.parts``, where ``self.parts.append(part)`` keeps
    some that a loop over ``model.named_modules()`` goes over; alone, or in a tuple."""
    if not isinstance(node, ast.Name):
        return
    for definition in study.defined_by(node, module):
        given = definition.value if definition.kind is Kind.ELEMENT else None
        path = access_path(given) if given is not None else None
        if given is None or path is None:
            continue
        for call in module.table.calls_by_name.of(ADDING):
            holder = call.func.value if isinstance(call.func, ast.Attribute) else None
            if holder is None or access_path(holder) != path:
                continue
            if _home(holder, path, module) is _home(given, path, module):
                for kept in call.args:
                    for part in kept.elts if isinstance(kept, ast.Tuple) else [kept]:
                        yield from looped_over(part, module, study)


def _home(node: ast.AST, path: str, module: Module) -> ast.AST | None:
    """The class in which ``self.parts`` is one thing; the function of another path."""
    if not path.startswith("self."):
        return enclosing_function(module, node)
    return next((p for p in module.table.ancestors(node) if isinstance(p, ast.ClassDef)), None)
