"""Scale gradients with `torch.amp.GradScaler`."""

import ast

from fsdp_migrate.families.precision import half_models, plain_scalers
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.forms import Form
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import of_kind, present

RULE = Rule(
    code="FSDP405",
    name="grad_scaler",
    handles=(
        "ShardedGradScaler",
        "isinstance(ShardedGradScaler)",
        "annotation(ShardedGradScaler)",
        "GradScaler of torch's",
    ),
    near=("ShardedGradScaler", "GradScaler of torch's"),
    finders=(Finder(132, plain_scalers.find_plain_scalers),),
)


EVERY = "this is true of every GradScaler now, also of one that is for another model"
REFUSED = (
    "a model is cast to float16 before it is sharded, and so are its gradients, which GradScaler "
    "refuses to unscale where ShardedGradScaler did: keep the parameters in float32 and cast them "
    "by MixedPrecisionPolicy(param_dtype=torch.float16)"
)
ARGUMENTS = (
    "device",
    "init_scale",
    "backoff_factor",
    "growth_factor",
    "growth_interval",
    "enabled",
    "process_group",
)
TORCHS = Form("torch.amp.GradScaler")
AGREEING = Form("a GradScaler by which all ranks of a group agree")


def decide(site: Site, study: Study) -> Decision:
    if site.construct == plain_scalers.PLAIN:
        message = "kept: all ranks leave out the same steps now"
        # It joins no models.
        return study.kept_as_is(
            site, RULE.code, message, models=plain_scalers.models(site, study)[:1]
        )
    models = study.every_constructor
    if not models:
        return study.left(site, RULE.code, study.no_models, "use torch.amp.GradScaler")
    proposal = study.proposal()
    module = site.module
    call = site.node
    if not isinstance(call, ast.Call) or call.func is not site.reference:
        torch = proposal.module_name(site.module, "torch", "torch", site.reference)
        proposal.replace(module, site.mention, code("{t}.amp.GradScaler", t=torch))
        review = EVERY if site.construct.kind is ConstructKind.ISINSTANCE else ""
        return study.rewritten(
            site, RULE.code, "torch.amp.GradScaler", proposal, models=models, review=review
        )
    unknown = {k.arg for k in call.keywords} - {*ARGUMENTS, None}
    if unknown or any(isinstance(a, ast.Starred) for a in call.args):
        problem = "the arguments of ShardedGradScaler cannot be read"
        return study.left(site, RULE.code, problem, "use torch.amp.GradScaler", models=models)
    bound = dict(zip(ARGUMENTS, call.args, strict=False))
    bound |= {k.arg: k.value for k in call.keywords if k.arg is not None}
    further = [code("**{v}", v=k.value) for k in call.keywords if k.arg is None]
    device = bound.pop("device", None)
    group = bound.pop("process_group", None)
    choice = module.table.parents[call]
    other = _same(call, choice, bound, device, site, study) if not further else None
    refused = REFUSED if half_models.may_be_half(models, study) else ""
    if other is not None:
        proposal.replace(module, of_kind(choice, ast.IfExp), code("{o}", o=other))
        message = "GradScaler, as for other models"
        review = "; ".join(filter(None, (_other_ranks(group, study), refused)))
        return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)
    named = "device=" if any(k.arg == "device" for k in call.keywords) else ""
    first = [code(f"{named}{{d}}", d=device)] if device is not None else []
    if not first and not further:
        first = [code('"cuda"')]
    rest = [code("{n}={v}", n=name, v=value) for name, value in bound.items()]
    arguments = join(", ", [*first, *rest, *further])
    review = _other_ranks(group, study)
    if review and study.take(site, TORCHS, AGREEING) == AGREEING.name:
        scaler = proposal.support(module, "AgreeingGradScaler", call)
        over = code(", process_group={g}", g=group) if group is not None else code("")
        proposal.replace(module, call, code("{s}({a}{g})", s=scaler, a=arguments, g=over))
        return study.rewritten(site, RULE.code, AGREEING.name, proposal, models=models)
    review = "; ".join(filter(None, (review, refused)))
    torch = proposal.module_name(module, "torch", "torch", site.reference)
    proposal.replace(module, call, code("{t}.amp.GradScaler({a})", t=torch, a=arguments))
    return study.rewritten(
        site, RULE.code, "torch.amp.GradScaler", proposal, models=models, review=review
    )


def _other_ranks(group: ast.expr | None, study: Study) -> str:
    """What is to be judged where ranks agree on overflows that do not shard the models."""
    sharding = [c.arguments.get("process_group") for c in study.constructors.values()]
    if _is_world(group):
        # A pair of groups, one to replicate over, has all ranks as a rule.
        if all(_is_world(each) or isinstance(each, ast.Tuple) for each in sharding):
            return ""
        spelled = "all ranks"
    else:
        spelled = ast.unparse(present(group))
        if all(s and ast.unparse(s) == spelled for s in sharding):
            return ""
    return (
        f"ranks agreed on overflows over {spelled}; now those do that share a model's shards. "
        "Reduce found_inf over others by hand if they differ"
    )


def _is_world(group: ast.expr | None) -> bool:
    """Whether a process group is the default one, of all ranks."""
    if group is None or (isinstance(group, ast.Constant) and group.value is None):
        return True
    return ast.unparse(group).endswith("WORLD")


# What a condition may be made of that nobody misses.
HARMLESS = (ast.Name, ast.Attribute, ast.Constant, ast.Subscript, ast.Compare, ast.BoolOp)


def _same(
    call: ast.Call,
    choice: ast.AST,
    bound: dict[str, ast.expr],
    device: ast.expr | None,
    site: Site,
    study: Study,
) -> ast.Call | None:
    """torch's own scaler in the other arm of ``ShardedGradScaler() if fsdp else GradScaler()``, if
    it is given the same."""
    if not isinstance(choice, ast.IfExp) or choice.test is call:
        return None
    other = choice.orelse if choice.body is call else choice.body
    names = study.external(other.func, site.module) if isinstance(other, ast.Call) else frozenset()
    orders = {plain_scalers.SCALERS.get(name) for name in names}
    order = orders.pop() if len(orders) == 1 else None
    if order is None or not isinstance(other, ast.Call):
        return None
    given = bind_arguments(other, order)
    tests = [n for n in ast.walk(choice.test) if isinstance(n, ast.expr)]
    if given is None or not all(isinstance(n, (*HARMLESS, ast.UnaryOp, ast.List)) for n in tests):
        return None
    own = {**bound, **({"device": device} if device is not None else {})}
    return other if _values(own) == _values(given) else None


def _values(given: dict[str, ast.expr]) -> dict[str, str]:
    return {"device": repr("cuda"), **{name: ast.unparse(value) for name, value in given.items()}}
