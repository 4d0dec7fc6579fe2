"""What a program is known to have none of, so that ``shard`` is written without the code for it.

The names are those that the support library sets to True at its top.
"""

from __future__ import annotations

import re

from fsdp_migrate.analysis.values import Constant, Made
from fsdp_migrate.families.wrapping import refused_modules
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.families.wrapping.model_contents import (
    may_have_batch_norm,
    may_have_float_buffers,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning import support_library
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

OF_PRECISION = {"HAS_CAST_SETTINGS", "HAS_LOW_PRECISION_GRADS"}
DTYPES = 3  # fields of MixedPrecision that come before the others
MODULE_LIST = re.compile(rb"class\s+\w+\([^)]*\bModule(List|Dict)\b")


def lacking(constructor: Constructor, study: Study) -> frozenset[str]:
    """What neither a constructor's model nor its arguments can have in this program.

    Of ``enable_wrap`` nothing: each ``wrap`` in it may have arguments of its own.
    """
    if constructor.is_context:
        return frozenset()
    found = {name for name, is_lacking in study.cache(_of_program).items() if is_lacking}
    wraps = [(w.wrapped, w.module) for w in constructor.wraps] if constructor.has_module else []
    told = study.project.mentions("_module_classes_to_ignore")
    if wraps and not (told or any(may_have_batch_norm(*w, study) for w in wraps)):
        found.add("HAS_BATCH_NORM")
    if wraps and not any(may_have_float_buffers(*w, study) for w in wraps):
        found.add("HAS_FLOAT_BUFFERS")
    if "HAS_CUSTOM_POLICIES" not in found or not _is_precision_in_sight(constructor, study):
        found -= OF_PRECISION  # a CustomPolicy has settings for its units
    return frozenset(found)


def _is_precision_in_sight(constructor: Constructor, study: Study) -> bool:
    """Whether every MixedPrecision that a constructor may get is written in the project."""
    if constructor.is_open:
        return False
    given = constructor.arguments.get("mixed_precision")
    values = study.values(given, constructor.module) if given is not None else ()
    return all(
        (isinstance(v, Constant) and v.value is None)
        or (isinstance(v, Made) and fsdp1.canonical(v.made_by or "") == "MixedPrecision")
        for v in values
    )


def _of_program(study: Study) -> dict[str, bool]:
    modules = [m for m in study.project.modules if not support_library.is_ours(m)]

    library = study.project.library

    def mentions(*words: str) -> bool:
        return any(module.mentions(*words) for module in modules) or library.speaks_of(*words)

    strings = (s.value for m in modules if m.mentions("meta") for s in m.table.strings)
    on_meta = mentions("param_init_fn", "init_empty_weights", "deferred_init")
    on_meta = on_meta or "meta" in strings or library.speaks_of('"meta"', "'meta'")
    sharded_before = mentions("fully_shard", "FSDPModule", "enable_wrap", "wrapper_cls") or any(
        role(constructor, study) is not Role.ROOT for constructor in study.constructors.values()
    )
    given = (c for m in modules for c in m.table.calls_by_name.named("MixedPrecision"))
    by_position = any(len(call.args) > DTYPES for call in given)
    # Set by its place, or by a name in a variable, in a file that has to do with models.
    is_hidden = by_position or any(module.mentions("setattr") for module in modules)
    casts = ("cast_forward_inputs", "cast_root_forward_inputs")
    held = any(
        constructor.has_module and refused_modules.doubt_of_container(constructor, study)
        for constructor in study.constructors.values()
    )
    texts = (*(module.source.data for module in modules), library.joined_text)
    return {
        "HAS_BARE_LISTS": not held,
        "HAS_CAST_SETTINGS": not (is_hidden or mentions(*casts)),
        "HAS_LOW_PRECISION_GRADS": not (is_hidden or mentions("keep_low_precision_grads")),
        "HAS_CUSTOM_POLICIES": not mentions("CustomPolicy", "_Policy"),
        "HAS_META_TENSORS": not on_meta,
        "HAS_MODULE_LISTS": not any(map(MODULE_LIST.search, texts)),
        "HAS_SHARDED_PARTS": not sharded_before,
    }
