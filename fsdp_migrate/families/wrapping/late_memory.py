"""Models on the meta device that get their memory after they are sharded: ``to_empty()``.

FSDP1 cast buffers before the first forward, so also those that were registered again after the
wrap. What is written casts them where the model is sharded.
"""

from __future__ import annotations

import ast

from fsdp_migrate.families.wrapping.model_contents import may_have_float_buffers
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor


def doubt(constructor: Constructor, study: Study) -> str:
    """What has to be judged of buffers that are cast, where a model gets its memory later."""
    if not constructor.has_module or not _gets_memory_later(constructor, study):
        return ""
    if not may_have_float_buffers(constructor.wrapped, constructor.module, study):
        return ""
    return (
        "to_empty() comes after this: a buffer that is registered again then keeps the dtype it is "
        "made in, and FSDP1 cast it before the first forward"
    )


def _gets_memory_later(constructor: Constructor, study: Study) -> bool:
    return any(
        constructor in study.models(call.func.value, module).constructors
        for module in study.project.modules_mentioning("to_empty")
        for call in module.table.calls_by_name.named("to_empty")
        if isinstance(call.func, ast.Attribute)
    )
