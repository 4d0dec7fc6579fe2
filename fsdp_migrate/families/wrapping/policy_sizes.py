"""Policies that only count parameters: the number of them says which modules become units.

One by itself is a number for ``units_by_size``. One that is joined with others is a test of a
module like these, for a loop that shards children first: parameters that units inside have taken
are sharded by then, and do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.families.wrapping import policies
from fsdp_migrate.families.wrapping.model_contents import may_have_batch_norm
from fsdp_migrate.families.wrapping.policies import Policy
from fsdp_migrate.families.wrapping.policy_places import (
    PolicyUse,
    convert_origin,
    is_local,
    sole_assignment,
    under_a_name,
)
from fsdp_migrate.families.wrapping.policy_uses import is_used_otherwise
from fsdp_migrate.families.wrapping.strategies import says_the_same
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.shard_plan import ShardPlan
from fsdp_migrate.syntax.kinds import present

USUAL_SIZE = "100_000_000"  # parameters of a unit, where nothing else is said
IGNORED = ("ignored_modules", "ignored_states")  # whose parameters do not count
SHARDED_BEFORE = ("distribute_tensor", "distribute_module", "parallelize_module")


def are_counts(
    real: Sequence[Policy], argument: ast.expr, constructor: Constructor, study: Study
) -> bool:
    """Whether a number can stand for each of the policies, wherever it is used.

    Torch's own function, as it is, is one only where it stands at the call.
    """
    if not all(p.by_size and (p.node is argument or isinstance(p.node, ast.Call)) for p in real):
        return False
    if any(is_used_otherwise(policy, study) for policy in real):
        return False
    sharing = _sharing(real, constructor, study)
    return all(_counts_all(each, study) for each in (constructor, *sharing))


def _sharing(
    real: Sequence[Policy], constructor: Constructor, study: Study
) -> Iterator[Constructor]:
    """The other constructors that may be given one of some policies."""
    nodes = {policy.node for policy in real}
    return (
        other
        for other in study.constructors.values()
        if other is not constructor
        and nodes & {p.node for p in policies.read_policies(other, study) or ()}
    )


def are_tests(real: Sequence[Policy], constructor: Constructor, study: Study) -> bool:
    """Whether a loop can ask joined policies of which some count: all others are tests, all
    parameters count, none is sharded before, and attention has no parts but torch's own."""
    joined = [each for policy in real for each in policy.joined]
    if not any(p.counts_joined for p in real) or study.project.mentions(*SHARDED_BEFORE):
        return False
    if any(p.needs_walk and not _is_test(p) for p in joined):
        return False
    if study.tracer.derived("torch.nn.MultiheadAttention"):
        return False
    return not any(
        each.may_have(name)
        for each in (constructor, *_sharing(real, constructor, study))
        for name in IGNORED
    )


def _is_test(policy: Policy) -> bool:
    return policy.by_size and isinstance(policy.node, ast.Call)


def test(policy: Policy, variable: str, plan: ShardPlan) -> Code:
    """Whether a module has that many parameters besides those that are sharded."""

    def name(source: str, name: str) -> str:
        return plan.proposal.name(policy.module, source, name, policy.node)

    nn = plan.proposal.module_name(policy.module, "torch.nn", "nn", policy.node)
    return code(
        "not isinstance({v}, ({nn}.ModuleList, {nn}.ModuleDict, {l})) and "
        "sum(p.numel() for p in {v}.parameters() if not isinstance(p, {d})) >= {n}",
        v=variable,
        nn=nn,
        l=name("torch.nn.modules.linear", "NonDynamicallyQuantizableLinear"),
        d=name("torch.distributed.tensor", "DTensor"),
        n=count(policy),
    )


def loop(
    argument: ast.expr, real: list[Policy], plan: ShardPlan, study: Study, *, nullable: bool
) -> PolicyUse:
    """Loop over what ``units_by_size`` lists; the policy becomes the number of parameters."""
    message = "loop over the modules of this size"
    first = real[0]
    at_call = first.node is argument
    is_fixed = first.argument is None or says_the_same(first.argument, plan.constructor)
    if (
        len(real) == 1
        and not nullable
        and (at_call or is_fixed)
        and is_local(argument, first, plan, study)
    ):
        convert_origin(first, None, message, plan, study)
        if not at_call:
            statement = present(sole_assignment(argument, first.node, first.module, study))
            plan.proposal.delete(first.module, statement)
        return PolicyUse(message, walk=count(first), by_size=True)
    for policy in real:
        convert_origin(policy, count(policy), message, plan, study)
    walk, setup = under_a_name(argument, plan)
    return PolicyUse(message, walk=walk, may_be_none=nullable, by_size=True, setup=setup)


def count(policy: Policy) -> Code:
    """How many parameters make a unit."""
    return code("{n}", n=policy.argument) if policy.argument is not None else code(USUAL_SIZE)


def _counts_all(constructor: Constructor, study: Study) -> bool:
    """Whether every parameter of a model counts, and no module is a unit for another reason.

    Where BatchNorm layers are units as well, FSDP1 looked into every module.
    """
    if any(map(constructor.may_have, IGNORED)):
        return False
    models = constructor.wraps
    if not constructor.may_have("mixed_precision"):
        return bool(models)
    return bool(models) and not any(
        may_have_batch_norm(model.wrapped, model.module, study) for model in models
    )
