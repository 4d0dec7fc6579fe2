"""Leave communication hooks, of which FSDP2 has none."""

import ast

from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import bind_arguments

RULE = Rule(
    code="FSDP417",
    name="comm_hook",
    handles=("FullyShardedDataParallel.register_comm_hook",),
)


HOOKS = "torch.distributed.algorithms._comm_hooks"
AVERAGING = ("allreduce_hook", "reduce_scatter_hook")
COMPRESSING = {"bf16_compress_hook": "bfloat16", "fp16_compress_hook": "float16"}


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    models = study.models(site.subject, site.module).constructors
    bound = bind_arguments(call, ("state", "hook")) if isinstance(call, ast.Call) else None
    hook = (bound or {}).get("hook")
    names = study.external(hook, site.module) if hook is not None else frozenset()
    ours = len(names) == 1 and all(each.startswith(HOOKS) for each in names)
    name = next(iter(names)).rpartition(".")[2] if ours else ""
    reason = "FSDP2 has no register_comm_hook"
    help_ = (
        "use set_custom_reduce_scatter (torch 2.9) for the reduction, or set_all_reduce_hook "
        "(torch 2.7) for what follows it"
    )
    if name in AVERAGING:
        help_ = "drop it, unless its state divides by other than the number of ranks"
    if name in COMPRESSING:
        reason = f"FSDP2 reduces in less precision by policy, not by {name}"
        help_ = (
            f"give every fully_shard of the model MixedPrecisionPolicy(reduce_dtype=torch."
            f"{COMPRESSING[name]}) and drop the hook"
        )
    return study.left(site, RULE.code, reason, help_, models=models)
