"""Turn `MixedPrecision` into `MixedPrecisionPolicy`, cast by cast."""

import ast
from collections.abc import Iterator
from dataclasses import replace

from fsdp_migrate.analysis import dataclass_fields
from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.precision import norm_inputs, packed_storage, precision
from fsdp_migrate.families.training_loop import hooks
from fsdp_migrate.families.wrapping import model_contents, unread_names
from fsdp_migrate.families.wrapping.assigned_nones import assigned_nones, replace_nones
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.fsdp1 import spelled_names
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.seen import seen_in_run
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

UNUSED = "nothing here sets {}: one that is given from elsewhere is not used any more"
WHOLE_PRECISION = (
    "FSDP2 has no keep_low_precision_grads: gradients have the dtype of their parameters once they "
    "are reduced, so that they take more memory, and are added up and clipped without rounding"
)
OFF_IN_RUN = (
    "keep_low_precision_grads was False in the run that was seen, and FSDP2 has nothing for True"
)
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
        if not dataclass_fields.is_written_in_sight(value, site.module, study.tracer):
            raise precision.Unreadable(f"{ast.unparse(value)} may be set by setattr")
        review = "" if not isinstance(value, ast.Attribute) else UNUSED.format(ast.unparse(value))
        return study.dropped(site, RULE.code, "dropped, it was None", review=review)
    place = role(plan.constructor, study)
    roots = {each.casts_root(study) for each in found}
    units = {each.casts_units(study) for each in found}
    alike = roots == {True} and all(_casts_alike(each, study) for each in found)
    same = units == {True} or roots == {False} or place is Role.PART or alike
    if not same and roots != {True}:
        raise precision.Unreadable(
            "the policies that reach this call differ in cast_root_forward_inputs"
        )
    inline = len(found) == 1 and found[0].call is value
    near = plan.constructor.reference
    if inline:
        study.convert(value, None, "MixedPrecisionPolicy", plan.constructor)
        policy = precision.policy(found[0], plan.proposal, study, root=alike, near=near)
        root = precision.policy(found[0], plan.proposal, study, root=True, near=near)
        plan.precision = Precision(policy, None if same else root, inline=True, same=same)
    else:
        for each in found:
            proposal = study.proposal()
            if each.call.lineno == each.call.end_lineno:
                new = precision.policy(each, proposal, study, root=alike, near=each.call.func)
                proposal.replace(each.module, each.call, new)
            else:
                precision.convert_in_place(each, proposal, study, each.call.func, root=alike)
            study.convert(each.call, None, "MixedPrecisionPolicy", plan.constructor, proposal)
        named = _named(plan, study, nullable=nullable)
        plan.precision = Precision(named, same=same, may_be_none=nullable)
    if plan.constructor.has("auto_wrap_policy"):
        plan.batch_norm = any(
            model_contents.may_have_batch_norm(each.wrapped, each.module, study)
            for each in plan.alike
        )
    plan.further += precision.buffer_sites(found, study)
    norms = _norms(plan, study) if any(each.spelled("param_dtype") for each in found) else ""
    lost = _lost(value, plan.constructor.module, study) if inline else ""  # else said at its origin
    packed = (
        packed_storage.disagreement(each.fields.get("param_dtype"), each.module, study)
        for each in found
    )
    norms = "; ".join(filter(None, [lost, next(filter(None, packed), ""), norms]))
    if place is Role.PART:
        message = "mp_policy of a part, whose inputs are not cast"
        return study.rewritten(site, RULE.code, message, review=norms)
    unsure = place is Role.UNKNOWN and not same
    if alike:
        message = "mp_policy, which roots alone have"
        return study.rewritten(site, RULE.code, message, review=norms)
    return study.rewritten(
        site,
        RULE.code,
        "mp_policy, with inputs cast by the root only",
        review="; ".join(filter(None, [norms, PART if unsure else ""])),
    )


def _norms(plan: ShardPlan, study: Study) -> str:
    """What to look at where BatchNorm is given fp32."""
    constructor = plan.constructor
    if not plan.batch_norm:
        return ""
    found = norm_inputs.in_full_precision(constructor.wrapped, constructor.module, study)
    where, call = next(found, (None, None))
    if where is None or call is None:
        return ""
    return (
        f"FSDP1 handed on fp32 where BatchNorm is given it, as {ast.unparse(call.func)} is "
        f"in {where.display}; now it is cast to param_dtype. If that counts, give such layers a "
        "policy without output_dtype"
    )


def _casts_alike(mixed: precision.MixedPrecision, study: Study) -> bool:
    """Whether a policy casts nothing, or is given to roots alone, whose units have others."""
    if mixed.spelled("param_dtype") == "":
        return True  # nothing is cast
    for constructor in study.constructors.values():
        given = constructor.arguments.get("mixed_precision")
        if given is None and not constructor.is_open:
            continue
        if given is None or constructor.is_open or constructor.defined_by is not None:
            return False
        reaches = any(v.node is mixed.call for v in study.values(given, constructor.module))
        if not reaches:
            continue
        if role(constructor, study) is not Role.ROOT:
            return False
        if constructor.may_have("auto_wrap_policy"):  # else it is the root's alone
            return False
    return True


def _named(plan: ShardPlan, study: Study, *, nullable: bool) -> Code:
    """The policy under a name that can be used twice."""
    value = plan.constructor.arguments["mixed_precision"]
    if not nullable and access_path(value) is not None:
        return code("{v}", v=value)
    default = code("{d}()", d=plan.name("torch.distributed.fsdp", "MixedPrecisionPolicy"))
    module = plan.constructor.module

    def may_be_none(node: ast.expr) -> bool:
        return precision.read(node, module, study)[1]

    nones = assigned_nones(value, module, may_be_none)
    if nones:
        if plan.is_first("mixed_precision"):
            replace_nones(nones, value, default, module, plan.proposal)
        return code("{v}", v=value)
    policy = with_default(value, default, may_be_none)
    name = plan.fresh("mp_policy")
    plan.setup.append(code("{n} = {p}", n=name, p=policy))
    return code("{n}", n=name)


def _origin(site: Site, study: Study) -> Decision:
    conversion = study.conversions.get(site.node)
    if conversion is None:
        return _unused(site, study)
    lost = _lost(site.node, site.module, study)
    decision = study.converted(site, RULE.code, conversion, review=lost)
    shown = "keep_low_precision_grads was False" if lost == OFF_IN_RUN else ""
    return replace(decision, message=seen_in_run(decision.message, shown))


def _lost(made: ast.AST, module: Module, study: Study) -> str:
    """What is lost with fields that FSDP2's policy has not."""
    if not isinstance(made, ast.Call):
        return ""
    given = precision.read_call(made, module, study).fields.get("keep_low_precision_grads")
    if given is None or not precision.keeps_low_precision(given, module, study):
        return ""
    if study.literal(given, module) is None and study.seen.value_at(given, module) == "false":
        return OFF_IN_RUN
    return WHOLE_PRECISION


REACHES_NONE = "no FSDP model in the given paths uses this policy; its buffer_dtype is gone"


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
        review=REACHES_NONE if _may_be_missed(site, mixed, study) else "",
    )


def _may_be_missed(site: Site, mixed: precision.MixedPrecision, study: Study) -> bool:
    """Whether somebody may take a policy, and miss the dtype of buffers in it."""
    if "buffer_dtype" not in mixed.fields or _is_never_read(site):
        return False
    return study.published or not _is_a_name_that_nothing_reads(site, study)


def _is_a_name_that_nothing_reads(site: Site, study: Study) -> bool:
    """Whether a policy has a name in its file which is not read there, nor anywhere else."""
    match site.module.table.parents[site.expression]:
        case ast.Assign(targets=[ast.Name(id=name)]) as made:
            return made in site.module.source.tree.body and not unread_names.is_read(name, study)
    return False


def _is_never_read(site: Site) -> bool:
    """Whether a policy is kept under a function's own name, which nothing reads."""
    table = site.module.table
    match table.parents[site.expression]:
        case ast.Assign(targets=[ast.Name(id=name)]) as made:
            scope = table.scope_of(made)
            return scope.is_function and not table.reads(name, scope)
    return False
