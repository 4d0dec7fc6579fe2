"""Give every rank rank 0's weights with DCP instead of `sync_module_states`."""

import ast

from fsdp_migrate.families.wrapping import meshes
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP, ShardPlan

RULE = Rule(
    code="FSDP110",
    name="sync_module_states",
    handles=("FullyShardedDataParallel(sync_module_states=)",),
)


def decide(site: Site, study: Study) -> Decision:
    plan, value, _ = study.argument(site)
    constant = study.literal(value, site.module)
    if constant is not None and not constant.value:
        return study.dropped(site, RULE.code, "dropped, it was False")
    if not meshes.has_one_first_rank(plan.constructor, study):
        return study.left(
            site,
            RULE.code,
            "sync_module_states over ranks that may have a first rank of their own",
            "broadcast the weights within the group or the mesh before sharding",
        )
    if plan.from_rank0:
        return study.rewritten(site, RULE.code, "with param_init_fn")
    _load_from_rank0(plan, None if constant is not None else value)
    return study.rewritten(site, RULE.code, "set_model_state_dict(broadcast_from_rank0=True)")


def _load_from_rank0(plan: ShardPlan, condition: ast.expr | None) -> None:
    get = plan.name(DCP, "get_model_state_dict")
    load = plan.name(DCP, "set_model_state_dict")
    options = plan.name(DCP, "StateDictOptions")
    state = plan.fresh("full_state")
    buffer = plan.fresh("buffer")
    take = code(
        "{g}({m}, options={o}(full_state_dict=True, cpu_offload=True))",
        g=get,
        m=plan.model,
        o=options,
    )
    give = code(
        "{s}({m}, {state}, options={o}(full_state_dict=True, broadcast_from_rank0=True))",
        s=load,
        m=plan.model,
        state=state,
        o=options,
    )
    broadcast = code(
        "for {b} in {m}.buffers():\n    {d}.broadcast({b}, src=0)",
        b=buffer,
        m=plan.model,
        d=plan.dist(),
    )
    comment = "# Taken from rank 0 before sharding, given to every rank after it."
    if condition is None:
        plan.before.append(code(comment + "\n{n} = {take}", n=state, take=take))
        plan.after += [give, broadcast]
        return
    flag = plan.sync_condition(condition)
    plan.before.append(code(comment + "\nif {f}:\n    {n} = {take}", f=flag, n=state, take=take))
    indented = code(
        "if {f}:\n    {give}\n    for {b} in {m}.buffers():\n        {d}.broadcast({b}, src=0)",
        f=flag,
        give=give,
        b=buffer,
        m=plan.model,
        d=plan.dist(),
    )
    plan.after.append(indented)
