"""What to_empty allocated and nothing filled."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import allocated
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "to_empty() gives the model memory with whatever is in it, and it runs before "
    "anything is put there"
)
BUFFERS = (
    "to_empty() gives {buffers} memory with whatever is in it: no checkpoint has a buffer that is "
    "registered with persistent=False, and only __init__ computes it"
)
HELP = "initialise or load the parameters behind to_empty(), and compute such buffers again"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node, buffers in allocated.find_unfilled(study, module):
        message = BUFFERS.format(buffers=buffers) if buffers else MESSAGE
        yield Hazard(RULE.code, module, node, message, HELP)


RULE = Rule(code="FSDP907", name="unfilled", handles=(), hazards=find)
