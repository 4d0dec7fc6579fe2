"""Reductions that are turned off for good."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import unsynced
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "nothing turns the reduction of gradients on again: the parameters never get any, and the "
    "optimizer steps without them"
)
HELP = "call set_requires_gradient_sync(True) before the last backward of each step"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node in unsynced.find_unsynced(study, module):
        yield Hazard(RULE.code, module, node, MESSAGE, HELP)


RULE = Rule(code="FSDP913", name="never_synced", handles=(), hazards=find)
