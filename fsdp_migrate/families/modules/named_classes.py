"""Names for the class of an object: ``kind = type(m)``."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.class_questions import classified
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.syntax.scopes import Kind


def named_subject(kind: ast.expr, module: Module) -> ast.expr | None:
    """``m`` of ``kind`` behind ``kind = type(m)``."""
    found = definitions(kind, module) if isinstance(kind, ast.Name) else ()
    subjects = [classified(d.value) for d in found if d.value is not None and not d.unpack]
    assigned = all(d.kind is Kind.ASSIGN for d in found) and len(subjects) == len(found) == 1
    return subjects[0] if assigned else None


def uses_of(kind: ast.expr, module: Module) -> list[ast.Name]:
    """Where ``kind`` is used behind ``kind = type(m)``."""
    match module.table.parents[kind]:
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is kind:
            return [
                node
                for node in ast.walk(enclosing_function(module, kind))
                if isinstance(node, ast.Name) and node.id == name and named_subject(node, module)
            ]
    return []
