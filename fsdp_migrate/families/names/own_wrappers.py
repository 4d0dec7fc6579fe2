"""Classes of a project's own that hold a module where FSDP1's wrapper does.

``self._fsdp_wrapped_module = module`` in a class that is none of torch's: names of its parameters
have that part as well, and keep it when torch's FSDP1 is gone.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from fsdp_migrate.families.names.key_prefixes import PART

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study


def hold_modules(study: Study) -> bool:
    """Whether a class of the project has the attribute by itself."""
    return any(
        isinstance(attribute.ctx, ast.Store)
        and isinstance(attribute.value, ast.Name)
        and attribute.value.id == "self"
        for module in study.project.modules
        for attribute in module.table.attributes_by_name.of({PART})
    )
