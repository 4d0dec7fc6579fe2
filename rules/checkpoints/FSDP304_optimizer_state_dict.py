"""Get an optimizer's state by parameter name."""

import ast
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import (
    compiled_models,
    expressed_settings,
    first_rank,
    held_optimizers,
    hoisting,
    hoisting_places,
    loaded_in_place,
    native_states,
    settings_in_force,
    snapshots,
    state_dict_settings,
    training_order,
)
from fsdp_migrate.families.checkpoints.state_options import state_options
from fsdp_migrate.families.wrapping import devices
from fsdp_migrate.families.wrapping.sharded_parts import sharded_parts
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.seen import seen_in_run
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import block_of

RULE = Rule(
    code="FSDP304",
    name="optimizer_state_dict",
    handles=(
        "FullyShardedDataParallel.optim_state_dict",
        "FullyShardedDataParallel.full_optim_state_dict",
        "FullyShardedDataParallel.sharded_optim_state_dict",
    ),
)


ARGUMENTS = {
    "optim_state_dict": ("model", "optim", "optim_state_dict", "group"),
    "full_optim_state_dict": ("model", "optim", "optim_input", "rank0_only", "group"),
    "sharded_optim_state_dict": ("model", "optim", "group"),
}


def decide(site: Site, study: Study) -> Decision:
    name = site.construct.last
    call = site.node
    bound = bind_arguments(call, ARGUMENTS[name]) if isinstance(call, ast.Call) else None
    model = bound.get("model") if bound else None
    models = study.models_of_static(model, site.module).constructors
    setting = settings_in_force.setting_at(site.node, site.module, models, study)
    by_setting = name == "optim_state_dict"
    asked = setting if by_setting else state_dict_settings.DEFAULT
    told, at_run_time = expressed_settings.choose(asked, site, study, optim=True)
    held = _held_state(bound, site)
    problem = _unreadable(bound, held, site) or _of_others(model, site, study)
    if by_setting and not problem:
        problem = "" if told or at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    rank0_only: bool | None = setting.optim_rank0_only
    if name == "full_optim_state_dict":
        rank0_only = rank0 = _rank0_only(bound, site, study)
        setting = replace(setting, optim_offload=True, optim_rank0_only=bool(rank0))
    if devices.are_on_cpu(models, study) and not snapshots.is_kept(site, study, aliases=True):
        setting = replace(setting, optim_offload=False)
    sharded = name == "sharded_optim_state_dict" or (by_setting and setting.kind == "SHARDED")
    found_at = hoisting_places.Standing()
    if not problem and not sharded:
        bound = present(bound)
        needed = (bound["model"], bound["optim"])
        found_at = hoisting_places.standing(site, needed, study)
        if rank0_only is None and found_at.place is not None:
            problem = "rank0_only is only known at run time"
    held_in = held_optimizers.Held("", frozenset())
    if not problem:
        held_in = held_optimizers.held_optimizer(present(bound)["optim"], site.module, study)
        problem = held_in.problem
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use get_optimizer_state_dict with the StateDictOptions that are meant",
            models=models,
            unknown_state=unknown,
        )
    bound = present(bound)
    proposal = study.proposal()
    if held is not None:
        proposal.delete(site.module, held)
    place = found_at.place
    if at_run_time:
        message = "optim_state_dict"
        get = proposal.support(site.module, message, site.node)
        new = code("{g}({m}, {o})", g=get, m=bound["model"], o=held_in.of(bound["optim"]))
    else:
        new, message = _new(
            bound, held_in, site, study, proposal, setting, place, told, sharded=sharded
        )
    if place is not None:
        message += f", gathered above '{place.guard}'"
    message = seen_in_run(message, found_at.shown)
    review, marked = hoisting.hoist(site, found_at, new, "optimizer_state", proposal, RULE.code)
    review = review or expressed_settings.doubt(told, site, place, study)
    review = review or compiled_models.said_of_names(bound["model"], site.module, study)
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, marked=marked
    )


def _unreadable(bound: dict[str, ast.expr] | None, held: ast.Assign | None, site: Site) -> str:
    """Why a call cannot be understood, or an empty text."""
    if not isinstance(site.node, ast.Call):
        return "FSDP1's function is read and not called"
    if bound is None or "model" not in bound or "optim" not in bound:
        return "its arguments cannot be read"
    if state_dict_settings.has_group(bound):
        return "the state is gathered over a process group of its own"
    state = bound.get("optim_state_dict")
    if state is None or held is not None or _is_own_state(state, bound["optim"]):
        return ""
    return f"the state to gather is passed as {ast.unparse(state)}"


def _of_others(model: ast.expr | None, site: Site, study: Study) -> str:
    """Why the states of parameters that others shard must not be gathered, or an empty text."""
    if model is None or not native_states.may_hold_shards(site.module, study):
        return ""
    is_held = bool(sharded_parts(model, site.module, study))
    return "the states of what is no part of FSDP2's may be ShardedTensor" if is_held else ""


def _held_state(bound: dict[str, ast.expr] | None, site: Site) -> ast.Assign | None:
    """``state = optimizer.state_dict()`` in front of the call, when ``state`` is for it alone."""
    state, optimizer = (bound or {}).get("optim_state_dict"), (bound or {}).get("optim")
    if not isinstance(state, ast.Name) or optimizer is None:
        return None
    table = site.module.table
    block = block_of(table.parents[site.statement], site.statement)
    scope = table.scope_of(state)
    uses = [n for n in table.names if n.id == state.id and table.scope_of(n) is scope]
    if len(uses) != 2 or not scope.is_function:
        return None
    assigned = [
        s
        for s in block[: block.index(site.statement)]
        if isinstance(s, ast.Assign) and s.targets == [n for n in uses if n is not state]
    ]
    for statement in assigned:
        between = block[block.index(statement) + 1 : block.index(site.statement)]
        steps = (n for s in between for n in ast.walk(s) if isinstance(n, ast.Attribute))
        if _is_own_state(statement.value, optimizer) and not any(n.attr == "step" for n in steps):
            return statement
    return None


def _is_own_state(state: ast.expr, optimizer: ast.expr) -> bool:
    """``optimizer.state_dict()``, which is what FSDP1 takes when it is given nothing."""
    if isinstance(state, ast.Constant):
        return state.value is None
    if not isinstance(state, ast.Call) or state.args or state.keywords:
        return False
    method, path = state.func, access_path(optimizer)
    if not isinstance(method, ast.Attribute) or method.attr != "state_dict":
        return False
    return path is not None and access_path(method.value) == path


def _rank0_only(bound: dict[str, ast.expr] | None, site: Site, study: Study) -> bool | None:
    """The argument of ``full_optim_state_dict``; None when only the running program knows."""
    given = (bound or {}).get("rank0_only")
    if given is None:
        return True
    flag = study.literal(given, site.module)
    return None if flag is None else bool(flag.value)


def _new(
    bound: dict[str, ast.expr],
    held_in: held_optimizers.Held,
    site: Site,
    study: Study,
    proposal: Proposal,
    setting: state_dict_settings.Setting,
    place: hoisting_places.Place | None,
    told: expressed_settings.Expressed | None,
    *,
    sharded: bool,
) -> tuple[Code, str]:
    """The call that gives the same state, and what it is called in reports."""
    module = site.module
    near = site.statement if place is None else place.statement
    path = access_path(bound["model"])
    if training_order.is_evaluated(study) and not (
        path and training_order.follows_model_state(site, path)
    ):
        training_order.reshard_before(near, bound["model"], site, study, proposal)
    model = hoisting.expression_at(bound["model"], place)
    optimizer = held_in.of(hoisting.expression_at(bound["optim"], place))
    message = "get_optimizer_state_dict"
    get = proposal.name(module, DCP, message, near)
    new = code("{g}({m}, {o})", g=get, m=model, o=optimizer)
    first = setting.optim_rank0_only or first_rank.is_read_by_first(site, place, study)
    chosen = "" if _rank0_only(bound, site, study) is not None else ast.unparse(bound["rank0_only"])
    if told:
        new = code(
            "{g}({m}, {o}, options={s})",
            g=get,
            m=model,
            o=optimizer,
            s=expressed_settings.options(told, module, near, proposal),
        )
    elif not sharded and setting.optim_offload and not first and not chosen:
        message = "whole_on_cpu"
        new = code("{f}({n})", f=proposal.support(module, message, near), n=new)
    elif not sharded:
        options = proposal.name(module, DCP, "StateDictOptions", near)
        flags = ["full_state_dict=True"]
        flags += [f"cpu_offload={chosen or first}"] if chosen or first else []
        new = code(
            "{g}({m}, {o}, options={s})",
            g=get,
            m=model,
            o=optimizer,
            s=state_options(options, ", ".join(flags)),
        )
    # What counts its steps is the optimizer's own, where the rest is gathered as well.
    if message != "whole_on_cpu" and snapshots.is_kept(site, study, aliases=True):
        copying = proposal.name(module, "copy", "deepcopy", near)
        new, message = code("{c}({n})", c=copying, n=new), f"a copy of {message}"
    early = training_order.comes_before_training(site.node, module, study)
    if early and not (sharded and _is_read_into(site, study)):
        new = code("({n} if {o}.state else {o}.state_dict())", n=new, o=optimizer)
    return new, message


def _is_read_into(site: Site, study: Study) -> bool:
    """Whether DCP reads a checkpoint further down in the same function."""
    function = enclosing_function(site.module, site.node)
    return any(
        loaded_in_place.is_load(call, study, site.module)
        for call in site.module.table.calls
        if enclosing_function(site.module, call) is function
        and site.module.position(call) > site.position
    )
