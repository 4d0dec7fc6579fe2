"""Clip gradients with `torch.nn.utils.clip_grad_norm_`."""

import ast
from collections.abc import Iterable

from fsdp_migrate.families.parameters import clips
from fsdp_migrate.families.parameters.parameter_owners import models_concerned, sharded
from fsdp_migrate.families.precision import half_models
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.families.wrapping import strategies, tensor_parallel
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.expressions import bind_arguments, last_name

RULE = Rule(
    code="FSDP401",
    name="clip_grad_norm",
    handles=(
        "FullyShardedDataParallel.clip_grad_norm_",
        "unbound(FullyShardedDataParallel.clip_grad_norm_)",
        "torch.nn.utils.clip_grad_norm_(parameters)",
        "torch.nn.utils.clip_grad_norm_(list)",
        "torch function of sharded and plain parameters",
    ),
    finders=(Finder(58, clips.find_clips), Finder(59, clips.find_mixed_lists)),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == clips.CLIP:
        return _torchs_own(site, study)
    if site.construct == clips.CLIP_LIST:
        return _of_a_list(site, study)
    if site.construct == clips.MIXED:
        return _of_both_kinds(site, study)
    if site.construct.kind is ConstructKind.UNBOUND:
        return _on_the_class(site, study)
    bound = None
    if isinstance(site.node, ast.Call):
        bound = bind_arguments(site.node, ("max_norm", "norm_type"))
    return _clipped(site, site.subject, bound, study)


def _on_the_class(site: Site, study: Study) -> Decision:
    """``FSDP.clip_grad_norm_(model, 1.0)``; given parameters, FSDP1's method stopped."""
    bound = None
    if isinstance(site.node, ast.Call):
        bound = bind_arguments(site.node, ("self", "max_norm", "norm_type"))
    given = bound.get("self") if bound is not None else None
    match given:
        case ast.Call(func=ast.Attribute(value=model, attr="parameters"), args=[], keywords=[]):
            if sharded(model, site.module, study):
                return _clipped(site, model, bound, study, review=STOPPED)
    if given is not None and study.traced(given, site.module):
        return _clipped(site, given, bound, study)
    return study.left(
        site,
        RULE.code,
        "FSDP.clip_grad_norm_ is FSDP1's own, whatever model it is given",
        "call clip_grad_norm_ on the model, and run again",
        models=study.every_constructor,
        quiet=True,
    )


STOPPED = (
    "FSDP1's method takes the model, and stopped with an error where it was given parameters: this "
    "clips them"
)


OF_OWN_GROUP = (
    "FSDP1 left what tensor parallelism keeps on other ranks out of the norm, so that each clipped "
    "by another one: this clips by the norm of all"
)


def _clipped(
    site: Site,
    model: ast.expr,
    bound: dict[str, ast.expr] | None,
    study: Study,
    review: str = "",
) -> Decision:
    """Clip all parameters of a model by the norm over all ranks."""
    found = study.models(model, site.module).constructors
    models = found or sharded(model, site.module, study)
    if bound is None or "max_norm" not in bound:
        return study.left(
            site,
            RULE.code,
            "the arguments of clip_grad_norm_ cannot be read",
            "use torch.nn.utils.clip_grad_norm_(model.parameters(), ...)",
            models=models,
        )
    call = site.call
    proposal = study.proposal()
    norm_type = code("")
    if "norm_type" in bound:
        norm_type = code(", norm_type={n}", n=bound["norm_type"])
    by_name = any(k.arg == "max_norm" for k in call.keywords)
    parts: dict[str, Code | ast.expr | str] = {
        "m": model,
        "x": code("max_norm={x}" if by_name else "{x}", x=bound["max_norm"]),
        "n": norm_type,
    }
    function = _emulation(bound.get("norm_type"), models, site, study)
    if function:
        parts["f"] = proposal.support(site.module, function, call)
        new = Code("{f}({m}, {x}{n})", parts)
    else:
        utils = proposal.module_name(site.module, "torch.nn.utils", "nn_utils", call)
        parts["f"] = f"{utils}.clip_grad_norm_"
        new = Code("{f}({m}.parameters(), {x}{n})", parts)
        if not isinstance(site.module.table.parents[call], ast.Expr):
            new = code("{c}.full_tensor()", c=new)
    proposal.replace(site.module, call, new)
    message = "torch.nn.utils.clip_grad_norm_"
    if tensor_parallel.may_split(models, study):
        review = "; ".join(filter(None, [review, OF_OWN_GROUP]))
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _torchs_own(site: Site, study: Study) -> Decision:
    """``torch.nn.utils.clip_grad_norm_``: in FSDP1 it computed the norm of this rank's part."""
    found = study.models(site.subject, site.module)
    models = sharded(site.subject, site.module, study)
    if _is_alternative(site, study):
        message = "kept: it is for models that are not FSDP's"
        return study.rewritten(site, RULE.code, message, models=models)
    bound = bind_arguments(site.call, ("parameters", "max_norm", "norm_type"))
    used = not isinstance(site.module.table.parents[site.call], ast.Expr)
    proposal = study.proposal()
    if bound is not None and "max_norm" in bound:
        norm_type = bound.get("norm_type")
        function = _emulation(norm_type, models, site, study)
        has_parts = not found.constructors and bool(models)  # and plain parameters beside them
        if not function and (has_parts or (used and not found.certain)):
            function = "clip_grad_norm_"  # which takes what is not sharded, too
        if function:
            proposal.replace(
                site.module,
                site.call,
                code(
                    "{f}({m}, {x}{n})",
                    f=proposal.support(site.module, function, site.call),
                    m=site.subject,
                    x=bound["max_norm"],
                    n=code(", norm_type={t}", t=norm_type) if norm_type is not None else code(""),
                ),
            )
        elif used:
            proposal.replace(site.module, site.call, _whole(site.call))
    message, review = "the norm of all ranks", _local(site, models, study)
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _of_a_list(site: Site, study: Study) -> Decision:
    """torch's own clipping of a list with some of a model's parameters."""
    models = models_concerned(site, study)
    if _is_alternative(site, study):
        message = "kept: it is for models that are not FSDP's"
        return study.rewritten(site, RULE.code, message, models=models)
    if site.doubt:
        return _in_doubt(site, study)
    kinds = clips.kinds(models, study)
    if kinds:
        return study.left(
            site,
            RULE.code,
            f"the list may hold {kinds}: one call cannot clip both kinds",
            "clip with clip_grad_norm_(model.parameters(), ...) on the model, and run again",
            models=models,
        )
    proposal = study.proposal()
    ignores = study.may_ignore(models)
    reviews = [_local(site, models, study)]
    used = not isinstance(site.module.table.parents[site.call], ast.Expr)
    if used and not ignores and _is_certain(site, study):
        proposal.replace(site.module, site.call, _whole(site.call))
    elif used:
        reviews.append("where the model is sharded, the norm is a DTensor")
    if half_models.may_be_half(models, study):
        reviews.append(IN_HALF)
    bound = bind_arguments(site.call, ("parameters", "max_norm", "norm_type"))
    if bound is None or not _is_finite(bound.get("norm_type"), site, study):
        reviews.append(OF_EMPTY)
    message, review = "the norm of all ranks", "; ".join(filter(None, reviews))
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


IN_HALF = (
    "gradients in float16 have a norm in float16, whose squares are added up over the ranks now: "
    "it overflows where one rank's part is above 255; clip by norms with dtype=torch.float32"
)
OF_EMPTY = (
    "with norm_type infinity, or a negative one, torch's function stops on a rank whose shard of a "
    "gradient is empty, as those of parameters with fewer rows than ranks are"
)


def _of_both_kinds(site: Site, study: Study) -> Decision:
    """A function of torch's that takes its list at once, where that cannot be done."""
    models = models_concerned(site, study)
    function = last_name(site.call.func)
    if function in clips.SINGLY and not any(k.arg in {None, "foreach"} for k in site.call.keywords):
        proposal = study.proposal()
        proposal.add_keyword(site.module, site.call, "foreach", code("False"))
        return study.rewritten(site, RULE.code, "one by one", proposal, models=models)
    return study.left(
        site,
        RULE.code,
        f"the list may hold {clips.kinds(models, study)}: {function} takes no two kinds",
        "call it for each kind",
        models=models,
    )


def _in_doubt(site: Site, study: Study) -> Decision:
    """Parameters of what may be an FSDP1 model, or another one, which goes on as it did."""
    models = frozenset(study.reached_from(site.module))
    review = ""
    if local := _local(site, models, study):
        review = f"if this is an FSDP model ({site.doubt}): {local}"
        if not isinstance(site.module.table.parents[site.call], ast.Expr):
            review += ", and the norm is a DTensor"
    return study.rewritten(site, RULE.code, "kept", models=models, review=review)


def _is_certain(site: Site, study: Study) -> bool:
    """Whether all that is clipped are parameters of FSDP1 models."""
    given = site.call.args[0] if site.call.args else site.call.keywords[0].value
    owners = clips.owners_of(given, study, site.module)
    return bool(owners) and all(study.models(m, where).certain for m, where in owners)


def _whole(call: ast.Call) -> Code:
    """The call as it is, with ``full_tensor()`` behind it."""
    given = [code("{v}", v=value) for value in call.args]
    given += [code(f"{k.arg}={{v}}", v=k.value) for k in call.keywords]
    return code("{f}({a}).full_tensor()", f=call.func, a=join(", ", given))


def _emulation(
    norm_type: ast.expr | None, models: Iterable[Constructor], site: Site, study: Study
) -> str:
    """The support function that clips where torch's own cannot; nothing where it can."""
    if not _is_finite(norm_type, site, study):
        return "clip_any_grad_norm_"
    return "clip_grad_norm_" if clips.needs_more(models, study) else ""


def _local(site: Site, models: frozenset[Constructor], study: Study) -> str:
    """What differs, unless every rank had all parameters."""
    if strategies.is_replicated(models, study):
        return ""
    reduced = reductions.is_reduced(site.call, study, site.module)
    return f"{LOCAL}: do not add it up over the ranks" if reduced else LOCAL


LOCAL = "FSDP1 clipped by the norm of each rank's own part here; this clips by the norm of all"


def _is_alternative(site: Site, study: Study) -> bool:
    """Whether the code is for models that are not FSDP's."""
    for condition, outcome in conditions.around(site.node, site.module.table):
        test, holds = condition, outcome
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, holds = test.operand, not holds
        asked = test.values if isinstance(test, ast.BoolOp) else [test]
        is_all = not isinstance(test, ast.BoolOp) or isinstance(test.op, ast.Or)
        if not holds and is_all and any(_asks_for_fsdp(each, site, study) for each in asked):
            return True
    return False


def _asks_for_fsdp(test: ast.expr, site: Site, study: Study) -> bool:
    """Whether a test holds of all FSDP1 models: other wrappers may be asked for as well."""
    match test:
        case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=name)]):
            return name in fsdp1.ONLY_MODELS
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
            kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
            named = {name for each in kinds for name in study.external(each, site.module)}
            return fsdp1.FSDP in map(fsdp1.canonical, named)
    return False


def _is_finite(norm_type: ast.expr | None, site: Site, study: Study) -> bool:
    """Whether the norm is certainly not the infinity norm."""
    if norm_type is None:
        return True
    value = study.literal(norm_type, site.module)
    return value is not None and isinstance(value.value, (int, float))
