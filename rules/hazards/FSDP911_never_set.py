"""Checkpoints that are loaded into copies."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import loads
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import last_name

WHOLE = (
    "a whole state is a copy: torch.distributed.checkpoint.load() fills it, and nothing gives it "
    "to the model or the optimizer"
)
SETTINGS = (
    "torch.distributed.checkpoint.load() fills the optimizer's tensors here, and what is none, as "
    "the learning rate, stays in the dictionary"
)
HELP = "call {name}() with the same entry below it"
PLAIN = "leave full_state_dict out, and "


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for lost in loads.find_lost(study, module):
        message = WHOLE if lost.is_whole else SETTINGS
        help_ = PLAIN * lost.is_whole + HELP.format(name=loads.SETTERS[last_name(lost.getter.func)])
        yield Hazard(RULE.code, module, lost.getter, message, help_, edits=lost.edits)


RULE = Rule(code="FSDP911", name="never_set", handles=(), hazards=find)
