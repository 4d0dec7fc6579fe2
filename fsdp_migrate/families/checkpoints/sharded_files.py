"""Sharded states that something else than ``torch.distributed.checkpoint`` writes or takes apart.

FSDP1's held ``ShardedTensor``, but for models that were given ``device_mesh``, those of FSDP2 hold
``DTensor``. DCP reads its files of the one into
the other; ``torch.save`` and the project's own code do not.
"""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant
from fsdp_migrate.families.checkpoints.state_dict_settings import (
    LOCAL,
    Setting,
    effective_setting,
    possible_kinds,
)
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

DCP = ("torch.distributed.checkpoint", "torch.distributed._shard.checkpoint")
NO_FILES = "torch.distributed.checkpoint.state_dict"  # which gives states, and writes none
FILES = frozenset({"torch.save", "torch.load"})
OTHERS = (
    "each rank's state now holds DTensor, where it was ShardedTensor: files of it that "
    "torch.distributed.checkpoint did not write do not load, and code that asks for ShardedTensor "
    "has to ask for DTensor"
)


def review(setting: Setting, models: Iterable[Constructor], study: Study, module: Module) -> str:
    """What to judge where a kind of state is chosen, or an empty text."""
    if setting.local:
        return LOCAL
    if setting.problem and setting.set_by is not None:  # one of several
        if "LOCAL" in possible_kinds(setting.set_by, module, study):
            return f"where the kind is LOCAL_STATE_DICT, {LOCAL}"
        return ""
    models = frozenset(models)
    if effective_setting(setting, models, study).kind != "SHARDED":
        return ""
    if models and all(_had_dtensors(each, study) for each in models):
        return ""
    island = study.project.island(module)
    known = study.cache(_known)
    if island not in known:
        known[island] = any(map(_asks_for_sharded, _beside(module, study)))
    return OTHERS if known[island] or are_torchs(module, study) else ""


def _had_dtensors(model: Constructor, study: Study) -> bool:
    """Whether FSDP1's sharded states had ``DTensor`` already, as with ``device_mesh``."""
    if not model.has("device_mesh") or model.may_lack("device_mesh"):
        return False
    given = (v for each in model.values("device_mesh") for v in study.values(each, model.module))
    return not any(isinstance(v, Constant) and v.value is None for v in given)


def is_of_program(review: str) -> bool:
    """Whether what there is to judge is a setting of the program rather than a place in it."""
    return review.endswith(LOCAL) and review != LOCAL


def are_torchs(module: Module, study: Study) -> bool:
    """Whether the project around a file reads or writes files with ``torch``, and none with DCP."""
    known = study.cache(_known_files)
    island = study.project.island(module)
    if island not in known:
        near = _beside(module, study)
        known[island] = any(_has_files(m, study) for m in near) and not any(
            _has_dcp(m, study) for m in near
        )
    return known[island]


def _beside(module: Module, study: Study) -> list[Module]:
    island = study.project.island(module)
    return [m for m in study.project.modules if study.project.island(m) == island]


def _known(study: Study) -> dict[object, bool]:
    return {}


def _known_files(study: Study) -> dict[object, bool]:
    return {}


def _asks_for_sharded(module: Module) -> bool:
    return any(b.qualified.endswith(".ShardedTensor") for b in module.table.imports)


def _has_files(module: Module, study: Study) -> bool:
    calls = module.table.calls_by_name.of({"save", "load"})
    return any(study.external(call.func, module) & FILES for call in calls)


def _has_dcp(module: Module, study: Study) -> bool:
    if not module.mentions("checkpoint"):
        return False
    names = {b.qualified for b in module.table.imports}
    for attribute in module.table.attributes_by_name.named("checkpoint"):
        names |= study.external(attribute, module)
    return any(name.startswith(DCP) and not name.startswith(NO_FILES) for name in names)
