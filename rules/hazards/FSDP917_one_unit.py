"""Models that are one unit as a whole."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import units
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "this is the project's only call of fully_shard: the model is one unit, and each rank gathers "
    "all of its parameters at once"
)
HELP = "call fully_shard() of each layer first"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for call in units.find_alone(study, module):
        yield Hazard(RULE.code, module, call, MESSAGE, HELP, is_note=True)


RULE = Rule(code="FSDP917", name="one_unit", handles=(), hazards=find)
