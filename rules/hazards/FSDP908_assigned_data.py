"""Data that is assigned to sharded parameters."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import assigned
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "this parameter is a DTensor, whose shard stays where it is when data is assigned: the model "
    "goes on with the old values"
)
HELP = (
    "write into the parameter under torch.no_grad(), with copy_(), mul_() and the like; "
    "for another dtype, convert the model before fully_shard, or use MixedPrecisionPolicy"
)


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node in assigned.find_data(study, module):
        yield Hazard(RULE.code, module, node, MESSAGE, HELP)


RULE = Rule(code="FSDP908", name="assigned_data", handles=(), hazards=find)
