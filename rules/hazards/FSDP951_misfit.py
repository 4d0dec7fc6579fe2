"""Calls into FSDP2 and DTensor that cannot bind."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import misfits
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule


def find(study: Study, module: Module) -> Iterator[Hazard]:
    return misfits.hazards(RULE.code, study, module, states=False)


RULE = Rule(code="FSDP951", name="misfit", handles=(), hazards=find)
