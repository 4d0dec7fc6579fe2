"""Weights that the first rank of every group or mesh gives to its others, after sharding."""

from __future__ import annotations

from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.shard_plan import ShardPlan

FUNCTION = "give_weights"


def give_weights(plan: ShardPlan, condition: Code | None) -> None:
    """Take what every rank holds before sharding; after it the first rank's is given to all."""
    weights, name, parameter = map(plan.fresh, ("weights", "name", "parameter"))
    take = code(
        "{w} = {{{n}: {p}.detach() for {n}, {p} in {m}.named_parameters()}}",
        w=weights,
        n=name,
        p=parameter,
        m=plan.model,
    )
    give = code("{f}({m}, {w})", f=plan.support(FUNCTION), m=plan.model, w=weights)
    if condition is not None:
        take = code("if {c}:\n    {s}", c=condition, s=take)
        give = code("if {c}:\n    {s}", c=condition, s=give)
    plan.before.append(take)
    plan.after.append(give)
