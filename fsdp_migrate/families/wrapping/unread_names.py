"""Names that nothing in the project reads: an import of one alone is no use of it."""

from __future__ import annotations

import ast

from fsdp_migrate.planning.context import Study


def is_read(name: str, study: Study) -> bool:
    """Whether any file of the project reads ``name``, or an attribute of that name."""
    for module in study.project.modules:
        if not module.mentions(name):
            continue
        table = module.table
        if table.attributes_by_name.named(name):
            return True
        if any(isinstance(each.ctx, ast.Load) for each in table.names_by_id.named(name)):
            return True
        if any(text.value == name for text in table.strings):
            return True
    return False
