"""Collectives that one rank alone comes to."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import alone
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = "all ranks have to call {what} of a sharded model: {guard} one waits for the others"
HELP = "call it on every rank, and do with the result what one rank is to do under the condition"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for each in study.cache(_found):
        if each.module is module:
            message = MESSAGE.format(what=each.what, guard=each.guard)
            yield Hazard(RULE.code, module, each.node, message, HELP)


def _found(study: Study) -> list[alone.Alone]:
    return list(alone.find(study))


RULE = Rule(code="FSDP915", name="one_rank_alone", handles=(), hazards=find)
