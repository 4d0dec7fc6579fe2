"""Optimizers that are built before fully_shard replaces the parameters of their model."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import optimizers
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "this optimizer is built before its model is sharded: fully_shard replaces the parameters, and "
    "the ones that it holds are never trained"
)
HELP = "build it below fully_shard, from the parameters that the model has then"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for call, edits in optimizers.find_early(study, module):
        yield Hazard(RULE.code, module, call, MESSAGE, HELP, edits=edits)


RULE = Rule(code="FSDP903", name="early_optimizer", handles=(), hazards=find)
