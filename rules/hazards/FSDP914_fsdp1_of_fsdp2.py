"""FSDP1's calls that are given models of FSDP2."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import of_fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = "this model is sharded by fully_shard: {name} {does}"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for each in of_fsdp1.find(study, module):
        message = MESSAGE.format(name=each.name, does=each.does)
        yield Hazard(RULE.code, module, each.call, message, each.help, edits=each.edits)


RULE = Rule(code="FSDP914", name="fsdp1_of_fsdp2", handles=(), hazards=find)
