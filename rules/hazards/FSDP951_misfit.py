"""Calls into FSDP2 and DTensor that cannot bind."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import misfits
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for each in misfits.find(study, module, states=False):
        yield Hazard(
            *(RULE.code, module, each.call, each.message, each.help),
            edits=each.edits,
            is_note=each.is_note,
        )


RULE = Rule(code="FSDP951", name="misfit", handles=(), hazards=find)
