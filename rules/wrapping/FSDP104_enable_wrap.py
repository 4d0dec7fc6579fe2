"""Wrap with `fully_shard` inside `enable_wrap`."""

import ast

from fsdp_migrate.families.wrapping import run_time, wrap_contexts
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rendering import render_context
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import ShardPlan, placement_problem
from fsdp_migrate.planning.wrap_contexts import KnownContext

RULE = Rule(code="FSDP104", name="enable_wrap", handles=("enable_wrap", "wrap"))


# What needs something done around each unit; fully_shard takes the rest once for all units.
OF_EACH_UNIT = frozenset(
    (
        *("auto_wrap_policy", "ignored_modules", "ignored_states"),
        *("param_init_fn", "sync_module_states"),
    )
)


def decide(site: Site, study: Study) -> Decision:
    constructor = study.constructors.get(site.node)
    known = study.wrapping.known.get(site.node)
    if known is not None:
        return _goes(site, known, study)
    for context in study.wrapping.known.values():
        if context.made_of is site.reference:
            message = "goes with the context that it is for"
            return study.rewritten(site, RULE.code, message, models=context.wraps)
    if constructor is None:
        return _outside(site, study)
    if constructor.is_context:
        return _context(site, constructor, study)
    return _wrap(site, constructor, study)


def _goes(site: Site, known: KnownContext, study: Study) -> Decision:
    """A context that each ``wrap`` in it has its arguments from."""
    proposal = study.proposal()
    proposal.unwrap(site.module, known.statement, known.index)
    for statement in known.dictionary:
        proposal.delete(site.module, statement)
    message = "goes: what it gives is written where wrap was called"
    return study.rewritten(site, RULE.code, message, proposal, models=known.wraps)


def _outside(site: Site, study: Study) -> Decision:
    """``enable_wrap`` or ``wrap`` as a value, or where no context for it is known."""
    reason, help = study.wrapping.problem
    if reason:
        return _left(site, reason, help, study)
    if site.construct == Construct(ConstructKind.NAME, "enable_wrap") or study.wrapping.enabled:
        return _left(
            site,
            f"the function {site.construct} is handed on as a value",
            "call it directly",
            study,
        )
    return study.left(
        site,
        RULE.code,
        "no enable_wrap in the given paths says what it wraps with",
        "give the path that calls enable_wrap as well; where a framework calls it, keep wrap and "
        "change the framework's strategy",
    )


def _left(site: Site, reason: str, help: str, study: Study, *, final: bool = False) -> Decision:
    models = study.every_constructor
    return study.left(site, RULE.code, reason, help, models=models, quiet=True, final=final)


def _wrap(site: Site, constructor: Constructor, study: Study) -> Decision:
    if constructor.is_wrong:
        return _left(
            site,
            f"this call cannot be read: {constructor.problem}",
            "correct it",
            study,
            final=True,
        )
    if wrap_contexts.is_outer_of_two(constructor, study):
        return run_time.without_outer(site, constructor, study)
    if wrap_contexts.is_wrapped_before(constructor, study):
        return _left(site, *wrap_contexts.TWICE, study, final=True)
    if study.wrapping.contexts[constructor] == (constructor,):
        reason = "its own arguments go before those of enable_wrap"
        return _left(site, reason, "write them as fully_shard's", study)
    return study.rewritten(
        site,
        RULE.code,
        "kept: it shards with what enable_wrap is given",
        models=study.wrapping.constructors,
    )


def _context(site: Site, constructor: Constructor, study: Study) -> Decision:
    if constructor.problem:
        return _left(
            site,
            f"the arguments of FSDP cannot be read: {constructor.problem}",
            "write them out at the call",
            study,
            final=constructor.is_wrong,
        )
    plan = study.plans[constructor]
    roots, problem = _roots(plan, study)
    problem = problem or _problem(plan)
    if problem:
        return _left(site, problem, "write wrapper_cls=fully_shard and its arguments", study)
    render_context(plan, [(wrap.module, wrap.call) for wrap in roots])
    models = study.wrapping.constructors
    return study.rewritten(
        site, RULE.code, "kept, and wraps with fully_shard", plan.proposal, models=models
    )


def _problem(plan: ShardPlan) -> str:
    """Why the context's arguments cannot be the same for all units."""
    constructor = plan.constructor
    for name, value in constructor.arguments.items():
        off = isinstance(value, ast.Constant) and not value.value
        if name in OF_EACH_UNIT and not off:
            return f"{name} asks for something to be done around every unit"
    once = (plan.targets, plan.walk, plan.before, plan.after, plan.finish, plan.batch_norm)
    if any(once):
        return "something is to be done around every unit"
    statement = constructor.statement
    later = isinstance(statement, (ast.With, ast.AsyncWith)) and not any(
        node is constructor.call for node in ast.walk(statement.items[0])
    )
    if (plan.setup or plan.precision) and (later or placement_problem(constructor)):
        return "statements are needed in front of the context, and cannot stand there"
    return ""


def _roots(plan: ShardPlan, study: Study) -> tuple[list[Constructor], str]:
    """The ``wrap`` calls that need a policy of their own, and why that cannot be told."""
    if plan.precision is None or plan.precision.same:
        return [], ""
    found = study.wrapping
    concerned = [w for w in found.contexts if plan.constructor in found.may_be_in(w)]
    places = {wrap: role(wrap, study) for wrap in concerned}
    if Role.UNKNOWN in places.values():
        return (
            [],
            "which wrap makes a whole model, whose inputs are cast, is only known at run time",
        )
    roots = [wrap for wrap, place in places.items() if place is Role.ROOT]
    if len(roots) == len(places):
        return [], ""
    if any(found.around.get(root) is not plan.constructor for root in roots):
        return [], "the model is wrapped where the policy for its root cannot be written"
    return roots, ""
