"""What uses an auto wrap policy beside FSDP1's constructors."""

from __future__ import annotations

import ast

from fsdp_migrate.families.wrapping import policies
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name


def is_used_otherwise(policy: policies.Policy, study: Study) -> bool:
    """Whether something else than constructors takes a policy for one, so that it has to stay."""
    others = study.cache(serving_others)
    if others is not None and policy.node in others:
        return True
    table = policy.module.table
    statement = table.parents.get(policy.node)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    target = statement.targets[0]
    uses = (table.parents[read] for read in table.reads(target.id, table.within[target]))
    return any(
        isinstance(use, ast.Attribute)
        or (isinstance(use, ast.Call) and getattr(use.func, "id", "") == target.id)
        for use in uses
    )


def serving_others(study: Study) -> set[ast.AST] | None:
    """Wrap policies that activation checkpointing or migrated code uses; None where that may be
    any.

    The policy functions are plain torch; only FSDP1's constructor makes them FSDP1's.
    """
    found: set[ast.AST] = set()
    for module in study.project.modules:
        serves = module.mentions(
            "apply_activation_checkpointing", "shard_by_policy", "nonwrapped_numel"
        )
        for call in module.table.calls if serves else ():
            name = last_name(call.func)
            given = given_arguments(call)
            asked = call.args[1:] if name == "shard_by_policy" else []
            if any(k.arg == "nonwrapped_numel" for k in call.keywords):
                given = asked = [call.func]  # a loop, or another policy, asks it
            elif name not in {"apply_activation_checkpointing", "shard_by_policy"}:
                continue
            for argument in given:
                values = study.values(argument, module)
                found |= policies.policy_origins(values, study)
                found |= policies.asked_by_functions(values, study)
                if policies.may_ask_any(values, study):
                    return None
            named = [n for each in asked for n in ast.walk(each) if isinstance(n, ast.Name)]
            if any(study.unknown(study.values(each, module)) for each in named):
                return None
    return found
