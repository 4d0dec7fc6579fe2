"""Checkpoints that are loaded into nothing."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import files
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "torch.distributed.checkpoint.load() fills the entries that a dictionary has: this one is "
    "empty, and stays so"
)
HELP = "give it what get_model_state_dict() gives, and set_model_state_dict() what it has become"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node in files.find_empty_loads(study, module):
        yield Hazard(RULE.code, module, node, MESSAGE, HELP)


RULE = Rule(code="FSDP910", name="empty_load", handles=(), hazards=find)
