"""Registered methods that the module's own forward calls."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import units
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "{name}() is called by {cls}.forward ({where}), and registered: what the unit gathers for "
    "forward() is put away when {name}() ends, and forward() goes on without it"
)
MAY_BE = (
    "{name}() is called by {cls}.forward ({where}), and registered: the unit's hooks run twice. "
    "torch 2.5 fails in backward; later releases train the same as without"
)
HELP = "register what is called from outside alone: forward() has its hooks"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for each in units.find_inner(study, module):
        message = (MESSAGE if each.is_sure else MAY_BE).format(
            name=each.method, cls=each.cls, where=each.where
        )
        yield Hazard(RULE.code, module, each.call, message, HELP, is_note=not each.is_sure)


RULE = Rule(code="FSDP916", name="inner_forward", handles=(), hazards=find)
