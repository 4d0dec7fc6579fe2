"""Files that hold the shards of one rank."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import files
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "the state of a sharded model is its DTensors, of which one rank writes its own shards: the "
    "file does not have the others"
)
HELP = (
    "on every rank, get_model_state_dict() with StateDictOptions(full_state_dict=True, "
    "cpu_offload=True), and save what that gives rank 0; or torch.distributed.checkpoint.save()"
)


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node in files.find_saved(study, module):
        yield Hazard(RULE.code, module, node, MESSAGE, HELP)


RULE = Rule(code="FSDP909", name="saved_shards", handles=(), hazards=find)
