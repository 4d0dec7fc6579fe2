"""Give every rank rank 0's weights instead of `sync_module_states`."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.wrapping import devices, meshes
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP, ShardPlan
from fsdp_migrate.syntax.expressions import last_name

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
    condition = None if constant is not None else value
    if not _may_be_elsewhere(plan.constructor, study):
        _broadcast(plan, condition)
        return study.rewritten(site, RULE.code, "broadcast from rank 0")
    _load_from_rank0(plan, condition)
    return study.rewritten(site, RULE.code, "set_model_state_dict(broadcast_from_rank0=True)")


def _may_be_elsewhere(constructor: Constructor, study: Study) -> bool:
    """Whether weights may be where they cannot be broadcast before sharding.

    They may be on the CPU under ``device_id``, on the meta device, or in parts that are sharded
    already.
    """
    others = (c for c in study.constructors.values() if c is not constructor)
    if study.project.mentions(*ELSEWHERE) or any(role(c, study) is not Role.ROOT for c in others):
        return True
    device = devices.read(constructor, study)
    is_given = constructor.has("device_id") and device.certain != "cpu"
    return is_given and not _is_moved(constructor, study)


ELSEWHERE = ("meta", "init_empty_weights", "parallelize_module", "distribute_tensor")


def _is_moved(constructor: Constructor, study: Study) -> bool:
    """Whether the model is put on a device above the call in any case: ``model.to(device)``."""
    module, table = constructor.module, constructor.module.table
    around = {constructor.call, *table.ancestors(constructor.call)}
    function = references.enclosing_function(module, constructor.call)
    moved = [
        call.func.value
        for call in table.calls_in(function)
        if isinstance(call.func, ast.Attribute)
        and call.lineno <= constructor.call.lineno
        and around >= {p for p in table.ancestors(call) if isinstance(p, CONDITIONAL)}
        and (call.func.attr == "cuda" or _is_to_accelerator(call, constructor, study))
    ]
    wrapped = constructor.wrapped
    if isinstance(wrapped, ast.Call) and isinstance(wrapped.func, ast.Attribute):
        return wrapped.func.value in moved
    path = access_path(wrapped)
    if path is None:
        return False
    return any(access_path(m) == path for m in moved)


CONDITIONAL = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.ExceptHandler, ast.Match)


def _is_to_accelerator(call: ast.Call, constructor: Constructor, study: Study) -> bool:
    """``x.to(device)``: ``device_id``'s own, or one that is no CPU. ``x.to(dtype)`` is none."""
    given = [k.value for k in call.keywords if k.arg == "device"] or call.args[:1]
    if last_name(call.func) != "to" or not given:
        return False
    asked = constructor.arguments["device_id"]
    same = ast.dump(given[0]) == ast.dump(asked)
    return same or devices.read_value(given[0], constructor.module, study).is_accelerator


def _broadcast(plan: ShardPlan, condition: ast.expr | None) -> None:
    """Emit what gives every rank rank 0's weights before sharding."""
    tensor = plan.fresh("tensor")
    loop = "for {t} in (*{m}.parameters(), *{m}.buffers()):\n    {d}.broadcast({t}.detach(), src=0)"
    if condition is not None:
        loop = "if {c}:\n    " + loop.replace("\n", "\n    ")
    parts = {"c": condition} if condition is not None else {}
    plan.before.append(code(loop, t=tensor, m=plan.model, d=plan.dist(), **parts))


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
