"""``mp_policy=None``, which fails at the first forward."""

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import RemoveArgument
from fsdp_migrate.planning.hazard import Hazard
from fsdp_migrate.planning.rule import Rule

MESSAGE = "fully_shard takes no None for mp_policy: the first forward fails"
MAY_BE = "fully_shard takes no None for mp_policy, which this may be: the first forward fails then"
HELP = "leave it out where nothing is computed in another precision"
ASKING = (ast.Compare, ast.If, ast.IfExp, ast.BoolOp, ast.UnaryOp)  # whether there is one
DEFAULT = "give MixedPrecisionPolicy() in the place of None, which changes nothing"


def find(study: Study, module: Module) -> Iterator[Hazard]:
    for call in fully_sharded.calls(module, study):
        for keyword in call.keywords:
            if keyword.arg != "mp_policy":
                continue
            said = study.literal(keyword.value, module)
            if said is None and _may_be_none(study, module, keyword.value):
                yield Hazard(RULE.code, module, call, MAY_BE, DEFAULT, is_note=True)
            if said is not None and said.value is None:
                edits = (RemoveArgument(module, call, keyword),)
                yield Hazard(RULE.code, module, call, MESSAGE, HELP, edits=edits)


def _may_be_none(study: Study, module: Module, policy: ast.expr) -> bool:
    """Whether None is among the values that code in sight gives a policy, and nothing asks."""
    given = [policy]
    if isinstance(policy, ast.Name):
        scope = module.table.scope_of(policy).lookup(policy.id)
        bindings = scope.bindings[policy.id] if scope is not None else []
        given += [b.value for b in bindings if isinstance(b.value, ast.expr)]
        parents = [module.table.parents[use] for use in module.table.reads(policy.id, scope)]
        if any(isinstance(each, ASKING) for each in parents):
            return False
    if any(isinstance(each, ast.BoolOp) for each in given):
        return False  # a default stands beside it
    return any(isinstance(v, Constant) and v.value is None for v in study.values(policy, module))


RULE = Rule(code="FSDP953", name="no_policy", handles=(), hazards=find)
