"""Give every rank rank 0's weights instead of `sync_module_states`."""

import ast
import re
from dataclasses import dataclass
from textwrap import indent

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.wrapping import cuda, device_code, devices, first_ranks, ignored, meshes
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP, ShardPlan
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import present

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
    condition = None if constant is not None else value
    if not meshes.has_one_first_rank(plan.constructor, study):
        return _within_groups(site, condition, study)
    if plan.from_rank0:
        return study.rewritten(site, RULE.code, "with param_init_fn")
    # What is ignored is not sent: every rank keeps its own.
    ignores = ignored.is_any(plan.constructor)
    if not _may_be_elsewhere(plan.constructor, study):
        _broadcast(plan, condition, Ranks())
        return study.rewritten(site, RULE.code, "broadcast from rank 0")
    if ignores and not _may_be_gone(plan.constructor, study):
        _broadcast(plan, condition, Ranks(device=device_code.type_code(plan, study)))
        return study.rewritten(site, RULE.code, "broadcast from rank 0")
    _load_from_rank0(plan, condition)
    return study.rewritten(
        site,
        RULE.code,
        "set_model_state_dict(broadcast_from_rank0=True)",
        review=IGNORED_TOO if ignores else "",
    )


IGNORED_TOO = "the ignored parameters are rank 0's too; FSDP1 left every rank its own"


def _within_groups(site: Site, condition: ast.expr | None, study: Study) -> Decision:
    """Broadcast within the ranks that share the model: every group has a first rank of its own."""
    plan = study.argument(site)[0]
    if plan.from_rank0:
        return study.rewritten(site, RULE.code, "with param_init_fn")
    if plan.constructor.has("device_mesh") or _may_be_gone(plan.constructor, study):
        if plan.constructor.has("cpu_offload") or plan.constructor.module.mentions(*SPLIT):
            return study.left(
                site,
                RULE.code,
                "sync_module_states over ranks that may have a first rank of their own",
                "broadcast the weights within the group or the mesh before sharding",
            )
        first_ranks.give_weights(
            plan, None if condition is None else plan.sync_condition(condition)
        )
        return study.rewritten(site, RULE.code, "given by the first rank of the mesh")
    given = plan.constructor.arguments["process_group"]
    to = None
    if _may_be_on_cpu(plan.constructor, study):
        to = device_code.type_code(plan, study)
    is_pair = meshes.may_be_pair(plan.constructor, study)
    _broadcast(plan, condition, Ranks(code("{g}", g=given), may_be_pair=is_pair, device=to))
    return study.rewritten(site, RULE.code, "broadcast from the first rank of the group")


def _may_be_elsewhere(constructor: Constructor, study: Study) -> bool:
    """Whether weights may be where they cannot be broadcast before sharding."""
    return _may_be_gone(constructor, study) or _may_be_on_cpu(constructor, study)


def _may_be_gone(constructor: Constructor, study: Study) -> bool:
    """Whether weights may be on the meta device, or in parts that are sharded already."""
    others = (c for c in study.constructors.values() if c is not constructor)
    if any(role(c, study) is not Role.ROOT for c in others):
        return True
    values = study.values(constructor.wrapped, constructor.module)
    made = {value.module for value in values}
    made |= {v.callee.module for v in values if isinstance(v, Made) and isinstance(v.callee, Class)}
    return any(
        file.mentions(*ELSEWHERE) or (file.mentions("meta") and META.search(file.source.text))
        for file in {constructor.module, *made}
    )


def _may_be_on_cpu(constructor: Constructor, study: Study) -> bool:
    """Whether weights may be on the CPU under ``device_id``."""
    device = devices.read(constructor, study)
    is_given = constructor.has("device_id") and device.certain != "cpu"
    return is_given and not _is_moved(constructor, study)


INDENT = "    "
META = re.compile(r"""["']meta["']""")
SPLIT = ("parallelize_module", "distribute_tensor")
ELSEWHERE = ("init_empty_weights", *SPLIT)


def _is_moved(constructor: Constructor, study: Study) -> bool:
    """Whether the model is put on a device above the call in any case: ``model.to(device)``."""
    module = constructor.module
    function = references.enclosing_function(module, constructor.call)
    moved = [
        call.func.value
        for call in module.table.calls_in(function)
        if isinstance(call.func, ast.Attribute)
        and call.lineno <= constructor.call.lineno
        and (call.func.attr == "cuda" or _is_to_accelerator(call, constructor, study))
        and cuda.runs_with(call, constructor.call, module)
    ]
    wrapped = constructor.wrapped
    if isinstance(wrapped, ast.Call) and isinstance(wrapped.func, ast.Attribute):
        return wrapped.func.value in moved
    path = access_path(wrapped)
    if path is None:
        return False
    return any(access_path(m) == path for m in moved)


def _is_to_accelerator(call: ast.Call, constructor: Constructor, study: Study) -> bool:
    """``x.to(device)``: ``device_id``'s own, or one that is no CPU. ``x.to(dtype)`` is none."""
    given = [k.value for k in call.keywords if k.arg == "device"] or call.args[:1]
    if last_name(call.func) != "to" or not given:
        return False
    asked = constructor.arguments["device_id"]
    same = ast.dump(given[0]) == ast.dump(asked)
    return same or devices.read_value(given[0], constructor.module, study).is_accelerator


@dataclass(frozen=True)
class Ranks:
    """Between which ranks weights are sent: from rank 0 to all, or within a group."""

    group: Code | None = None
    may_be_pair: bool = False  # of groups, one after the other
    device: Code | None = None  # where weights are moved to for that, one by one


def _broadcast(plan: ShardPlan, condition: ast.expr | None, ranks: Ranks) -> None:
    """Emit what gives every rank the first rank's weights before sharding."""
    parts: dict[str, Code | ast.expr | str] = {
        "t": plan.fresh("tensor"),
        "m": plan.model,
        "d": plan.dist(),
    }
    sent, to = "{t}.detach()", "src=0"
    if ranks.device is not None:
        parts |= {"s": plan.fresh("on_device"), "device": ranks.device}
        sent = "{s}"
    if ranks.group is not None:
        parts["g"] = ranks.group
        to = "group={g}, group_src=0"
    text = f"{{d}}.broadcast({sent}, {to})"
    if ranks.may_be_pair:
        parts |= {"g": plan.fresh("group"), "given": present(ranks.group)}
        parts["all"] = plan.fresh("groups")
        text = "for {g} in {all}:\n" + indent(text, INDENT)
    if ranks.device is not None:
        text = f"{{s}} = {{t}}.detach().to({{device}})\n{text}\n{{t}}.detach().copy_({{s}})"
    if ignored.is_any(plan.constructor):
        parts["i"] = plan.fresh("ignored_params")
        text = "if {t} not in {i}:\n" + indent(text, INDENT)
    text = "for {t} in (*{m}.parameters(), *{m}.buffers()):\n" + indent(text, INDENT)
    if ranks.may_be_pair:
        text = "{all} = {given} if isinstance({given}, tuple) else ({given},)\n" + text
    if condition is not None:
        parts["c"] = condition
        text = "if {c}:\n" + indent(text, INDENT)
    plan.before.append(Code(text, parts))


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
