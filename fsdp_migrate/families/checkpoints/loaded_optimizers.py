"""What is written for the load of an optimizer's whole state."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.checkpoints import (
    expressed_settings,
    held_optimizers,
    optimizer_states,
)
from fsdp_migrate.families.checkpoints.state_options import state_options
from fsdp_migrate.families.training_loop import schedulers
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.kinds import present


def know_settings_of_schedulers(
    held: held_optimizers.Held, optimizer: ast.expr, site: Site, study: Study, proposal: Proposal
) -> str:
    """Give the groups ``initial_lr``, and what else a scheduler adds: torch loads the settings that
    the optimizer has. Others are an error, or with broadcast_from_rank0 missing on all other ranks.

    Returns:
        What is to be judged where that is not known: DCP refuses a file without the setting.
    """
    path = access_path(optimizer)
    scheduled = schedulers.is_scheduled(optimizer, site.module, study)
    if path is None or scheduled is False:
        return ""
    reads = [site.module.table.statement(read) for read in optimizer_states.sharded_reads(site)]
    if reads and scheduled is None:
        return "make schedulers before this: initial_lr is read only where the optimizer has it"
    group = proposal.fresh(site.module, site.node, "group", loop=True)
    others = schedulers.settings_beside(study)
    adds = "schedulers add these" if others else "a scheduler adds this one"
    known = f"# Only settings that the groups have are loaded; {adds}.\n"
    loop = 'for {g} in {o}.param_groups:\n    {g}.setdefault("initial_lr", {g}["lr"])'
    if others:
        named = ", ".join(f'"{name}"' for name in ("initial_lr", *others))
        name = proposal.fresh(site.module, site.node, "name", loop=True)
        set_all = f'for {name} in ({named}):\n        {{g}}.setdefault({name}, {{g}}["lr"])'
        loop = f"for {{g}} in {{o}}.param_groups:\n    {set_all}"
    read = next(iter(reads), site.statement)  # what is read is what the optimizer has by then
    block = site.module.table.parents[site.statement]
    around = (read, *site.module.table.ancestors(read))
    beside = (each for each in around if site.module.table.parents.get(each) is block)
    statement = next((each for each in beside if isinstance(each, ast.stmt)), read)
    proposal.insert_before(site.module, statement, code(known + loop, g=group, o=held.of(path)))
    return ""


def converted(
    load: optimizer_states.Load, site: Site, proposal: Proposal, name: str, from_rank0: str
) -> Code:
    """This rank's part of a state, as the optimizer's own method takes it."""
    model, optimizer, state = load.parts
    return code(
        "{f}({m}, {o}, {s}{r})",
        f=proposal.support(site.module, name, site.node),
        m=model,
        o=optimizer,
        s=state,
        r=f", from_rank0={from_rank0}" if from_rank0 else "",
    )


def separated(
    state: ast.expr, site: Site, study: Study, proposal: Proposal, *, may_lack: bool
) -> Code:
    """A state in which each parameter has its step.

    Args:
        may_lack: only rank 0 need have a state; others may have None, unless each makes its own.
    """
    values = study.values(state, site.module)
    is_made = bool(values) and all(isinstance(v, Made) for v in values)
    template = "{f}({s} or {{}})" if may_lack and not is_made else "{f}({s})"
    return code(template, f=proposal.support(site.module, "separate_steps", site.node), s=state)


def loaded_by_itself(
    load: optimizer_states.Load, site: Site, proposal: Proposal, from_rank0: str
) -> Code:
    """The call of the optimizer's own method with what is converted for it."""
    name = "optimizer_state_to_load"
    part = converted(load, site, proposal, name, from_rank0)
    return code("{o}.load_state_dict({c})", o=present(load.optimizer), c=part)


def loaded(
    load: optimizer_states.Load,
    held: held_optimizers.Held,
    site: Site,
    study: Study,
    proposal: Proposal,
    models: frozenset[Constructor],
    told: expressed_settings.Expressed | None,
    from_rank0: str,
    *,
    by_itself: bool,
) -> Code:
    """The call that loads a whole state, or what only the running program knows to be one.

    SGD without momentum has none, which torch refuses, as it does a state that lacks some
    parameters'; without ``strict`` it counts a step for these.

    Args:
        by_itself: torch may refuse the file, which lacks the states of what was frozen, or has
            names that ``torch.compile`` made.
    """
    module = site.module
    model, optimizer, state = load.parts
    kinds = optimizer_states.kinds(held.values, study)
    given, whole = code("{s}", s=state), code(told.full if told else "True")
    if by_itself or kinds.divides_by_zero:
        return loaded_by_itself(load, site, proposal, from_rank0)
    if told and (kinds.may_be_empty or kinds.depends):
        return loaded_by_itself(load, site, proposal, from_rank0)
    is_named = not any(isinstance(node, ast.Call) for node in ast.walk(state))
    if kinds.may_be_empty and (from_rank0 or not (kinds.is_empty or is_named)):
        return loaded_by_itself(load, site, proposal, from_rank0)
    if (kinds.may_be_empty or kinds.depends) and not (from_rank0 or kinds.is_empty) and is_named:
        whole = code('bool({s}["state"])', s=state)
    if kinds.counts_steps and optimizer_states.may_share_steps(models, study):
        given = separated(state, site, study, proposal, may_lack=bool(from_rank0))
    options = code("")
    if not kinds.is_empty:
        maker = proposal.name(module, DCP, "StateDictOptions", site.node)
        source = f", broadcast_from_rank0={from_rank0}" if from_rank0 else ""
        flags = code("full_state_dict={w}{b}", w=whole, b=source)
        options = code(", options={o}", o=state_options(maker, flags, load=True))
    function = proposal.name(module, DCP, "set_optimizer_state_dict", site.node)
    return code(
        "{f}({m}, {p}, {s}{o})", f=function, m=model, p=held.of(optimizer), s=given, o=options
    )
