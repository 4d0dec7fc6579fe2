"""Parameters that fully_shard ignores and an optimizer trains."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import unreduced
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "an optimizer trains these parameters, which fully_shard ignores: nobody reduces their "
    "gradients, so that each rank trains them by itself"
)
HELP = (
    "leave them to fully_shard, freeze them with requires_grad_(False) above the optimizer, "
    "or reduce their gradients in front of each step"
)


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for node in unreduced.find_ignored(study, module):
        yield Hazard(RULE.code, module, node, MESSAGE, HELP)


RULE = Rule(code="FSDP906", name="trained_ignored_params", handles=(), hazards=find)
