"""Drop communication hooks that do what is done anyway."""

import ast

from fsdp_migrate.analysis.values import Made
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import of_kind

RULE = Rule(
    code="FSDP417",
    name="comm_hook",
    handles=("FullyShardedDataParallel.register_comm_hook",),
)


HOOKS = "torch.distributed.algorithms._comm_hooks"
DEFAULTS = ("allreduce_hook", "reduce_scatter_hook")
COMPRESSING = {"bf16_compress_hook": "bfloat16", "fp16_compress_hook": "float16"}
WHOLE = ("._get_default_group", ".new_group")
FACTORS = frozenset({"gradient_predivide_factor", "gradient_postdivide_factor"})


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    models = study.models(site.subject, site.module).constructors
    bound = bind_arguments(call, ("state", "hook")) if isinstance(call, ast.Call) else None
    hook, state = (bound or {}).get("hook"), (bound or {}).get("state")
    names = study.external(hook, site.module) if hook is not None else frozenset()
    name = next(iter(names)).rpartition(".")[2] if len(names) == 1 else ""
    ours = all(each.startswith(HOOKS) for each in names)
    statement = site.statement
    alone = isinstance(statement, ast.Expr) and statement.value is call
    if ours and name in DEFAULTS and alone and _averages(state, site, study):
        proposal = study.proposal()
        proposal.delete(site.module, statement)
        message = "gradients are averaged without it"
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    help_ = (
        "use set_custom_reduce_scatter (torch 2.9) for the reduction, or set_all_reduce_hook "
        "(torch 2.7) for what follows it"
    )
    reason = "FSDP2 has no register_comm_hook"
    if ours and name in COMPRESSING:
        reason = f"FSDP2 reduces in less precision by policy, not by {name}"
        help_ = (
            f"give every fully_shard of the model MixedPrecisionPolicy(reduce_dtype=torch."
            f"{COMPRESSING[name]}) and drop the hook"
        )
    return study.left(site, RULE.code, reason, help_, models=models)


def _averages(state: ast.expr | None, site: Site, study: Study) -> bool:
    """Whether a state divides by the number of all ranks, as is done without a hook."""
    if state is None:
        return False
    changed = not study.project.attributes_set.isdisjoint(FACTORS)
    found = study.values(state, site.module)
    return not changed and all(isinstance(v, Made) and _is_of_all(v, study) for v in found)


def _is_of_all(state: Made, study: Study) -> bool:
    if not state.made_by.startswith(HOOKS) or not state.made_by.endswith(".DefaultState"):
        return False
    bound = bind_arguments(of_kind(state.node, ast.Call), ("process_group",))
    group = (bound or {}).get("process_group")
    if group is None:
        return False
    if isinstance(group, ast.Call):
        names = study.external(group.func, state.module)
        made = group.args or group.keywords
        return not made and bool(names) and all(name.endswith(WHOLE) for name in names)
    names = study.external(group, state.module)
    return bool(names) and all(name.endswith("group.WORLD") for name in names)
