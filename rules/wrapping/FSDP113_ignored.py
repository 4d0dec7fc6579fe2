"""Keep ignored parameters out of sharding with `ignored_params`."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.values import Constant, Display, Unknown, Value
from fsdp_migrate.families.wrapping import frozen_modules, ignored
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import ShardPlan

RULE = Rule(
    code="FSDP113",
    name="ignored",
    handles=(
        "FullyShardedDataParallel(ignored_modules=)",
        "FullyShardedDataParallel(ignored_states=)",
    ),
    since="2.7",
)


REVIEW = "ignored parameters stay plain tensors: build the optimizer with foreach=False"


def decide(site: Site, study: Study) -> Decision:
    plan, value, name = study.argument(site)
    if isinstance(value, ast.Constant) and value.value is None:
        return study.dropped(site, RULE.code, "dropped, it was None")
    if ignored.is_empty(value, site.module):
        return study.dropped(site, RULE.code, "dropped, it was empty")
    other = _other(name, plan)
    one_at_most = other is not None and (
        _may_be_none(value, plan, study) or _may_be_none(other, plan, study)
    )
    if "ignored_params" not in plan.everywhere:
        joined = other if one_at_most else None
        _leave_out(value, name, joined, plan, site, study)
    elif not one_at_most:
        return study.left(
            site,
            RULE.code,
            "both ignored_modules and ignored_states are given, which FSDP1 refuses",
            "give one of them",
            final=True,
        )
    review = "" if frozen_modules.are_frozen(value, site.module, study) else REVIEW
    return study.rewritten(site, RULE.code, "ignored_params", review=review)


def _other(name: str, plan: ShardPlan) -> ast.expr | None:
    """The other of both arguments, of which FSDP1 takes one that is not None."""
    (other,) = {"ignored_modules", "ignored_states"} - {name}
    given = plan.constructor.arguments.get(other)
    is_none = isinstance(given, ast.Constant) and given.value is None
    return (
        None
        if given is None or is_none or ignored.is_empty(given, plan.constructor.module)
        else given
    )


def _leave_out(
    value: ast.expr,
    name: str,
    joined: ast.expr | None,
    plan: ShardPlan,
    site: Site,
    study: Study,
) -> None:
    """Keep what is given, and what another argument may be given in its place, out of sharding."""
    if joined is not None:
        listed = code("{n}", n=plan.fresh("ignored_states"))
        plan.setup.append(code("{n} = [*({v} or ()), *({o} or ())]", n=listed, v=value, o=joined))
    else:
        listed = _listed(value, name, plan, study)
    if name == "ignored_modules" and joined is None:
        parameters = code("{{p for m in {n} for p in m.parameters()}}", n=listed)
        modules = code("{{m for x in {n} for m in x.modules()}}", n=listed)
    else:
        nn = plan.proposal.module_name(site.module, "torch.nn", "nn", plan.constructor.reference)
        parameters = code(
            "{{p for x in {n} for p in (x.parameters() if isinstance(x, {nn}.Module) else [x])}}",
            n=listed,
            nn=nn,
        )
        modules = code(
            "{{m for x in {n} if isinstance(x, {nn}.Module) for m in x.modules()}}",
            n=listed,
            nn=nn,
        )
    params = plan.fresh("ignored_params")
    plan.setup.append(code("{n} = {p}", n=params, p=parameters))
    plan.everywhere["ignored_params"] = code("{n}", n=params)
    plan.ignored = modules


def _may_be_none(value: ast.expr, plan: ShardPlan, study: Study) -> bool:
    values = study.values(value, plan.constructor.module)
    return any(isinstance(v, (Constant, Unknown)) for v in values)


def _listed(value: ast.expr, name: str, plan: ShardPlan, study: Study) -> Code:
    """What is ignored, as something that can be gone over twice."""
    values = study.values(value, plan.constructor.module)
    given = code("{v} or ()" if _may_be_none(value, plan, study) else "{v}", v=value)
    has_name = access_path(value) is not None
    if has_name and values and all(map(_is_list_or_none, values)):
        return given
    listed = code("{n}", n=plan.fresh(name))
    whole = "{v}" if isinstance(value, (ast.List, ast.Tuple)) else "list({g})"
    plan.setup.append(code(f"{{n}} = {whole}", n=listed, v=value, g=given))
    return listed


def _is_list_or_none(value: Value) -> bool:
    is_none = isinstance(value, Constant) and value.value is None
    return is_none or (
        isinstance(value, Display) and isinstance(value.node, (ast.List, ast.Tuple, ast.Set))
    )
