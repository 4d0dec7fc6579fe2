"""Identities and attributes of parameters that fully_shard replaces."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import identities
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "this is of the parameters that the model has before it is sharded: fully_shard replaces them, "
    "and what is looked for below is found of none"
)
HELP = "do it below fully_shard, or keep names of parameters"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node, edits in identities.find_early(study, module):
        yield Hazard(RULE.code, module, node, MESSAGE, HELP, edits=edits)


RULE = Rule(code="FSDP912", name="early_identities", handles=(), hazards=find)
