"""Load an optimizer's whole state, old FSDP1 files included."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import (
    compiled_models,
    expressed_settings,
    held_optimizers,
    loaded_optimizers,
    optimizer_states,
    settings_in_force,
    state_dict_settings,
    torchs_loads,
    training_order,
)
from fsdp_migrate.families.modules import freezing
from fsdp_migrate.families.names.deletions import drop_assignment
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.kinds import present

RULE = Rule(
    code="FSDP305",
    name="load_optimizer_state",
    handles=(
        "FullyShardedDataParallel.optim_state_dict_to_load",
        "FullyShardedDataParallel.scatter_full_optim_state_dict",
        "FullyShardedDataParallel.shard_full_optim_state_dict",
        "FullyShardedDataParallel.flatten_sharded_optim_state_dict",
        "torch's load of an optimizer's state",
    ),
    finders=(Finder(126, torchs_loads.find_torchs_loads),),
)

BY_TORCH = "load with set_optimizer_state_dict(model, optimizer, state)"
BY_NAMES = "give the optimizer's load_state_dict a state with the names that its state_dict() has"


def decide(site: Site, study: Study) -> Decision:
    is_torchs = site.construct == torchs_loads.LOAD
    return _separated(site, study) if is_torchs else _of_fsdp1(site, study)


def _of_fsdp1(site: Site, study: Study) -> Decision:
    """A conversion of FSDP1's, together with the load of its result."""
    name = site.construct.last
    load = optimizer_states.read_load(site, name, study)
    models = study.models_of_static(load.model, site.module).constructors
    by_setting = name == "optim_state_dict_to_load"
    setting = settings_in_force.setting_at(site.node, site.module, models, study)
    asked = setting if by_setting else state_dict_settings.DEFAULT
    told, at_run_time = expressed_settings.choose(asked, site, study, optim=True)
    compiled = compiled_models.said_of_names(load.model, site.module, study)
    # The conversion, without the load of its result.
    alone = bool(load.problem) or at_run_time or bool(compiled and load.branch)
    is_complete = None not in (load.model, load.optimizer, load.state)
    problem = "" if is_complete else load.problem or "the optimizer is not passed"
    if not problem and by_setting and not told and not at_run_time:
        problem = setting.problem
    if not is_complete and load.problem == optimizer_states.NEVER_LOADED:
        spare = optimizer_states.unread_assignment(site.call, site.module)
        if spare is not None:
            return _never_loaded(site, spare, models, study)
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            BY_NAMES if problem == optimizer_states.NAMED else BY_TORCH,
            models=models,
            unknown_state=problem == setting.problem,
        )
    proposal = study.proposal()
    module = site.module
    sharded = name.startswith("flatten_sharded") or (
        by_setting
        and told is None
        and (setting.kind == "SHARDED" or optimizer_states.sharded_reads(site))
    )
    only_rank0 = name.startswith("scatter") or (
        by_setting and not sharded and not at_run_time and setting.optim_rank0_only
    )
    from_rank0 = "True" if only_rank0 else told.from_rank0 if told else ""
    if alone:
        message = "optim_state_dict_to_load" if at_run_time else "optimizer_state_to_load"
        new = loaded_optimizers.converted(load, site, proposal, message, from_rank0)
        proposal.replace(module, site.expression, new)
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    model, optimizer, state = load.parts
    held = held_optimizers.held_optimizer(optimizer, module, study)
    message, unread = "set_optimizer_state_dict", ""
    followed = training_order.follows_model_state(site, access_path(model) or "")
    if training_order.may_follow_evaluation(site.node, module, study) and not followed:
        training_order.reshard_before(site.statement, model, site, study, proposal)
    if held.problem:  # its own load_state_dict takes a state of its own parameters
        new = loaded_optimizers.loaded_by_itself(load, site, proposal, from_rank0)
        message = "optimizer_state_to_load"
    else:
        unread = loaded_optimizers.know_settings_of_schedulers(
            held, optimizer, site, study, proposal
        )
        if sharded and not optimizer_states.kinds(held.values, study).divides_by_zero:
            function = proposal.name(module, DCP, message, site.node)
            new = code("{f}({m}, {o}, {s})", f=function, m=model, o=held.of(optimizer), s=state)
        else:
            new = loaded_optimizers.loaded(
                load,
                held,
                site,
                study,
                proposal,
                models,
                told,
                from_rank0,
                by_itself=bool(compiled)
                or freezing.is_frozen_in_between(study)
                or _has_gradients(held, study),
            )
    target = present(load.target)
    review = unread or (
        "" if held.problem else optimizer_states.without_closure(optimizer, site, study)
    )
    if load.branch is not None:
        _load_in_branch(load, load.branch.test, new, site, proposal)
        return study.rewritten(site, RULE.code, message, proposal, models=models, review=unread)
    proposal.replace(module, target, new)
    if load.assignment is not None:
        drop_assignment(load.assignment, module, study, proposal)
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _has_gradients(held: held_optimizers.Held, study: Study) -> bool:
    """Whether an optimizer may be made while there are gradients: torch gives it no state then to
    load into, and stops."""
    return any(
        isinstance(v.node, ast.Call) and training_order.meets_gradients(v.node, v.module, study)
        for v in held.values
    )


def _never_loaded(
    site: Site, spare: ast.Assign, models: frozenset[Constructor], study: Study
) -> Decision:
    """A conversion that goes: it changed nothing, and FSDP2 has none without a load."""
    proposal = study.proposal()
    drop_assignment(spare, site.module, study, proposal)
    review = (
        "nothing loaded what FSDP1 made of the state here, so that the optimizer went on without "
        "it, as it does now: to resume it, call set_optimizer_state_dict(model, optimizer, state)"
    )
    message = "removed: its result is never loaded"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _load_in_branch(
    load: optimizer_states.Load, test: ast.expr, new: Code, site: Site, proposal: Proposal
) -> None:
    """The load where the state was converted, and the optimizer's own in all other cases."""
    module, target = site.module, present(load.target)
    proposal.replace_statement(module, present(load.assignment), new)
    simple = isinstance(test, (ast.Name, ast.Attribute, ast.Call))
    template = "if not {t}:\n    {l}" if simple else "if not ({t}):\n    {l}"
    other = code(template, t=test, l=target)
    proposal.replace_statement(module, module.table.statement(target), other)


def _separated(site: Site, study: Study) -> Decision:
    """What torch's function is given, with a ``step`` for each parameter."""
    proposal, message = study.proposal(), "separate_steps"
    may_lack = site.module.mentions("broadcast_from_rank0")
    new = loaded_optimizers.separated(site.expression, site, study, proposal, may_lack=may_lack)
    proposal.replace(site.module, site.expression, new)
    models = torchs_loads.models_of(site.subject, site.module, study)
    return study.rewritten(site, RULE.code, message, proposal, models=models)
