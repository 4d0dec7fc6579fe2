"""Optimizers that are built while the root's parameters are whole."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.hazards import optimizers
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = (
    "this optimizer is built after a forward without a backward: the parameters that the root "
    "holds itself are whole tensors then, which the next forward puts away, so that they are never "
    "trained"
)
HELP = "build it before the first forward, or call reshard() of the model first"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for call, edits in optimizers.find_late(study, module):
        yield Hazard(RULE.code, module, call, MESSAGE, HELP, edits=edits)


RULE = Rule(code="FSDP904", name="late_optimizer", handles=(), hazards=find)
