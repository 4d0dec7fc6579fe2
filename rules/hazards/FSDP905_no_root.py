"""Models whose parts are sharded and which are not."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import unreduced
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "parts of this model are sharded and the model is not: nobody reduces the gradients of {left}, "
    "which each rank trains by itself"
)
HELP = "call fully_shard() on the model as well, below its parts and above this optimizer"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node, left, edits in unreduced.find_rootless(study, module):
        yield Hazard(RULE.code, module, node, MESSAGE.format(left=left), HELP, edits=edits)


RULE = Rule(code="FSDP905", name="no_root", handles=(), hazards=find)
