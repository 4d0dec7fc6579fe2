"""Norms of gradients that are one rank's."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import norms, replicated
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "this norm is of the shards that one rank holds, and nothing adds those of the others: it is "
    "too small, and another on each rank"
)
MAY_BE = (
    "this norm is of the shards that one rank holds, and nothing adds those of the others, where "
    "the model is one that fully_shard shards: it may be another, too"
)
DOUBLED = (
    "this adds the squares of all ranks, and the mesh replicates as well as it shards: each "
    "replica is counted, and the norm is too large"
)
GROUP = "give all_reduce the group of the dimension that shards: group=mesh.get_group(...)"
HELP = (
    "use what torch.nn.utils.clip_grad_norm_() or get_total_norm() gives, with full_tensor() of "
    "it, or add the squares of all ranks with all_reduce() over the mesh that shards"
)


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for norm in norms.find_local(study, module):
        if norm.is_sharded:
            yield Hazard(RULE.code, module, norm.gradient, MESSAGE, HELP, edits=norm.edits)
        else:
            yield Hazard(RULE.code, module, norm.gradient, MAY_BE, HELP, is_note=True)
    for call in replicated.find_doubled(study, module):
        yield Hazard(RULE.code, module, call, DOUBLED, GROUP)


RULE = Rule(code="FSDP901", name="local_norm", handles=(), hazards=find)
