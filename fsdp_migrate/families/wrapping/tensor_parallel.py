"""Models whose parameters are on several meshes: FSDP over tensor parallelism.

What ``parallelize_module`` has split is sharded on both dimensions of a mesh, all else on FSDP's
alone, and torch's functions take no list of both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

SPLITTING: Final = frozenset({"parallelize_module", "distribute_module", "distribute_tensor"})
OF_TORCH: Final = ("torch.distributed.tensor.", "torch.distributed._tensor.")


def may_split(models: Iterable[Constructor], study: Study) -> bool:
    """Whether other code may have split parameters of some models before they are sharded.

    FSDP1 shards such a model over one dimension of a mesh, or over a group.
    """
    over_some = any(c.may_have("device_mesh") or c.may_have("process_group") for c in models)
    return over_some and study.cache(_splits)


def _splits(study: Study) -> bool:
    for module in study.project.modules_mentioning(*SPLITTING):
        renamed = (b.name for b in module.table.imports if b.qualified.endswith(tuple(SPLITTING)))
        for call in module.table.calls_by_name.of({*SPLITTING, *renamed}):
            names = study.external(call.func, module)
            if any(n.startswith(OF_TORCH) and n.rpartition(".")[2] in SPLITTING for n in names):
                return True
    return False
