"""Scale gradients with `torch.amp.GradScaler`."""

import ast

from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule

RULE = Rule(
    code="FSDP405",
    name="grad_scaler",
    handles=(
        "ShardedGradScaler",
        "isinstance(ShardedGradScaler)",
        "annotation(ShardedGradScaler)",
    ),
    near=("ShardedGradScaler",),
)


EVERY = "this is true of every GradScaler now, also of one that is for another model"
ARGUMENTS = (
    "device",
    "init_scale",
    "backoff_factor",
    "growth_factor",
    "growth_interval",
    "enabled",
    "process_group",
)


def decide(site: Site, study: Study) -> Decision:
    models = study.every_constructor
    if not models:
        return study.left(site, RULE.code, study.no_models, "use torch.amp.GradScaler")
    proposal = study.proposal()
    torch = proposal.module_name(site.module, "torch", "torch", site.reference)
    call = site.node
    if not isinstance(call, ast.Call) or call.func is not site.reference:
        proposal.replace(site.module, site.mention, code("{t}.amp.GradScaler", t=torch))
        review = EVERY if site.construct.kind is ConstructKind.ISINSTANCE else ""
        return study.rewritten(
            site, RULE.code, "torch.amp.GradScaler", proposal, models=models, review=review
        )
    if any(isinstance(a, ast.Starred) for a in call.args):
        problem = "the arguments of ShardedGradScaler cannot be read"
        return study.left(site, RULE.code, problem, "use torch.amp.GradScaler", models=models)
    bound = dict(zip(ARGUMENTS, call.args, strict=False))
    bound |= {k.arg: k.value for k in call.keywords if k.arg is not None}
    further = [code("**{v}", v=k.value) for k in call.keywords if k.arg is None]
    device = bound.pop("device", None)
    bound.pop("process_group", None)
    first = [code("{d}", d=device)] if device is not None else []
    if not first and not further:
        first = [code('"cuda"')]
    rest = [code("{n}={v}", n=name, v=value) for name, value in bound.items()]
    arguments = join(", ", [*first, *rest, *further])
    proposal.replace(site.module, call, code("{t}.amp.GradScaler({a})", t=torch, a=arguments))
    return study.rewritten(site, RULE.code, "torch.amp.GradScaler", proposal, models=models)
