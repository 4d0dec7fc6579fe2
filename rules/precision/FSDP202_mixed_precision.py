"""Turn `MixedPrecision` into `MixedPrecisionPolicy`, cast by cast."""

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.precision import precision
from fsdp_migrate.families.training_loop import hooks
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.fsdp1 import spelled_names
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.shard_plan import Precision, ShardPlan, with_default


def _evaluations(study: Study, module: Module) -> Iterator[Site]:
    return spelled_names.evaluations(module)


RULE = Rule(
    code="FSDP202",
    name="mixed_precision",
    handles=(
        "FullyShardedDataParallel(mixed_precision=)",
        "MixedPrecision",
        "string(FSDP_USE_FULL_PREC_IN_EVAL)",
        "forward pre-hook",
        "forward hook",
    ),
    finders=(
        Finder(90, hooks.find_forward_hooks),
        Finder(130, _evaluations),
    ),
)

EVALUATION = Construct.parse(RULE.handles[2])

PART = (
    "it casts its inputs, as FSDP1's root does: if this model becomes part of another FSDP model, "
    "set cast_forward_inputs=False"
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == EVALUATION:
        return _evaluation(site, study)
    if site.construct == Construct(ConstructKind.NAME, "MixedPrecision"):
        return _origin(site, study)
    if site.construct in {hooks.BEFORE, hooks.AFTER}:
        return _hook(site, study)
    plan, _, _ = study.argument(site)
    try:
        return _argument(site, plan, study)
    except precision.Unreadable as problem:
        return study.left(site, RULE.code, str(problem), "write the MixedPrecisionPolicy by hand")


def _hook(site: Site, study: Study) -> Decision:
    """A hook on a model that casts its inputs: FSDP1's hooks had them before the cast."""
    call = site.call
    known = study.models(site.subject, site.module).constructors
    if site.construct == hooks.AFTER or any(k.arg is None for k in call.keywords):
        message = "kept, with inputs that are cast"
        return study.rewritten(site, RULE.code, message, models=known, review=CAST)
    proposal = study.proposal()
    proposal.add_keyword(site.module, call, "prepend", code("True"))
    review = "" if hooks.is_alone(site, study) else REVERSED
    return study.rewritten(
        site, RULE.code, "in front of the cast", proposal, models=known, review=review
    )


CAST = (
    "FSDP1 gave this hook the inputs as the program gives them; now they are cast to param_dtype "
    "already"
)
REVERSED = (
    "hooks that are put in front of the cast run in the reverse order: register them the other "
    "way round if their order counts"
)


def _evaluation(site: Site, study: Study) -> Decision:
    """The environment variable that only FSDP1 reads."""
    return study.rewritten(
        site,
        RULE.code,
        "kept, and read by nothing any more",
        models=study.every_constructor,
        review=(
            "FSDP2 does not read this variable: with mixed precision, evaluation computes in "
            "param_dtype like training"
        ),
    )


def _argument(site: Site, plan: ShardPlan, study: Study) -> Decision:
    value = plan.constructor.arguments["mixed_precision"]
    found, nullable = precision.read(value, site.module, study)
    if not found:
        return study.dropped(site, RULE.code, "dropped, it was None")
    place = role(plan.constructor, study)
    roots = {each.casts_root(study) for each in found}
    units = {each.casts_units(study) for each in found}
    same = units == {True} or roots == {False} or place is Role.PART
    if not same and roots != {True}:
        raise precision.Unreadable(
            "the policies that reach this call differ in cast_root_forward_inputs"
        )
    inline = len(found) == 1 and found[0].call is value
    near = plan.constructor.reference
    if inline:
        study.convert(value, None, "MixedPrecisionPolicy", plan.constructor)
        policy = precision.policy(found[0], plan.proposal, study, root=False, near=near)
        root = precision.policy(found[0], plan.proposal, study, root=True, near=near)
        plan.precision = Precision(policy, None if same else root, inline=True, same=same)
    else:
        for each in found:
            proposal = study.proposal()
            precision.convert_in_place(each, proposal, study, each.call.func)
            study.convert(each.call, None, "MixedPrecisionPolicy", plan.constructor, proposal)
        plan.precision = Precision(_named(plan, study, nullable=nullable), same=same)
    plan.batch_norm = plan.constructor.has("auto_wrap_policy") and model_contents.may_contain(
        plan.constructor.wrapped, site.module, "BatchNorm", study
    )
    plan.further += precision.buffer_sites(found)
    if place is Role.PART:
        return study.rewritten(site, RULE.code, "mp_policy of a part, whose inputs are not cast")
    unsure = place is Role.UNKNOWN and not same
    return study.rewritten(
        site,
        RULE.code,
        "mp_policy, with inputs cast by the root only",
        review=PART if unsure else "",
    )


def _named(plan: ShardPlan, study: Study, *, nullable: bool) -> Code:
    """The policy under a name that can be used twice."""
    value = plan.constructor.arguments["mixed_precision"]
    if not nullable and access_path(value) is not None:
        return code("{v}", v=value)
    default = code("{d}()", d=plan.name("torch.distributed.fsdp", "MixedPrecisionPolicy"))
    module = plan.constructor.module
    policy = with_default(value, default, lambda v: precision.read(v, module, study)[1])
    name = plan.fresh("mp_policy")
    plan.setup.append(code("{n} = {p}", n=name, p=policy))
    return code("{n}", n=name)


def _origin(site: Site, study: Study) -> Decision:
    conversion = study.conversions.get(site.node)
    if conversion is not None:
        return study.converted(site, RULE.code, conversion)
    return _unused(site, study)


def _unused(site: Site, study: Study) -> Decision:
    """Convert a policy that reaches no constructor like the others, for review."""
    models = study.every_constructor
    problem = study.no_models
    mixed = None
    if isinstance(site.node, ast.Call):
        try:
            mixed = precision.read_call(site.node, site.module, study)
        except precision.Unreadable as reason:
            problem = problem or str(reason)
    if mixed is None or problem:
        return study.left(
            site,
            RULE.code,
            problem or "MixedPrecision is used as a value",
            "migrate it together with the code that uses it",
            models=models,
        )
    proposal = study.proposal()
    precision.convert_in_place(mixed, proposal, study, site.reference)
    return study.rewritten(
        site,
        RULE.code,
        "MixedPrecisionPolicy",
        proposal,
        models=models,
        review=(
            "no FSDP model in the given paths uses this policy; its buffer_dtype, if any, is gone"
        ),
    )
