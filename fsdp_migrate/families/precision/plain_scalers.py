"""torch's own ``GradScaler`` beside models of FSDP1's.

It asked this rank's gradients alone: where one rank alone had an overflow, that rank left the step
out and halved its scale, and the others stepped. What it is given by FSDP2 are ``DTensor``s, by
which all ranks agree, as by ``ShardedGradScaler``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.one_program import can_meet
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

PLAIN = Construct.parse("GradScaler of torch's")
ORDER = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled")
SCALERS = {
    "torch.cuda.amp.GradScaler": ORDER,
    "torch.cuda.amp.grad_scaler.GradScaler": ORDER,
    "torch.amp.GradScaler": ("device", *ORDER),
    "torch.amp.grad_scaler.GradScaler": ("device", *ORDER),
}


def find_plain_scalers(study: Study, module: Module) -> Iterator[Site]:
    """Sites for torch's scalers that sharded models may have, where none is FSDP1's."""
    if not module.mentions("GradScaler") or study.project.mentions("ShardedGradScaler"):
        return
    for call in module.table.calls:
        if study.external(call.func, module) & SCALERS.keys() and not _is_off(call):
            site = Site(PLAIN, module, call, call)
            if models(site, study):
                yield site


def models(site: Site, study: Study) -> list[Constructor]:
    """The models that a scaler may be for."""
    near = study.reached_from(site.module)
    return [c for c in near if can_meet(site.module, c.module, study)]


def _is_off(call: ast.Call) -> bool:
    return any(
        k.arg == "enabled" and isinstance(k.value, ast.Constant) and k.value.value is False
        for k in call.keywords
    )
