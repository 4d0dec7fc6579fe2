"""``mp_policy=None``, which fails at the first forward."""

from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import RemoveArgument
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = "fully_shard takes no None for mp_policy: the first forward fails"
HELP = "leave it out where nothing is computed in another precision"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for call in fully_sharded.calls(module, study):
        for keyword in call.keywords:
            said = study.literal(keyword.value, module) if keyword.arg == "mp_policy" else None
            if said is not None and said.value is None:
                edits = (RemoveArgument(module, call, keyword),)
                yield Hazard(RULE.code, module, call, MESSAGE, HELP, edits=edits)


RULE = Rule(code="FSDP953", name="no_policy", handles=(), hazards=find)
