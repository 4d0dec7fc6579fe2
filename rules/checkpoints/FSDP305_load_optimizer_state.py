"""Load an optimizer's whole state, old FSDP1 files included."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import (
    optimizer_states,
    settings_in_force,
    state_dict_settings,
    training_order,
)
from fsdp_migrate.families.names.deletions import drop_assignment
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, Proposal, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP

RULE = Rule(
    code="FSDP305",
    name="load_optimizer_state",
    handles=(
        "FullyShardedDataParallel.optim_state_dict_to_load",
        "FullyShardedDataParallel.scatter_full_optim_state_dict",
        "FullyShardedDataParallel.shard_full_optim_state_dict",
        "FullyShardedDataParallel.flatten_sharded_optim_state_dict",
    ),
)


def decide(site: Site, study: Study) -> Decision:
    name = site.construct.last
    load = optimizer_states.read(site, name, study)
    models = study.models_of_static(load.model, site.module).constructors
    by_setting = name == "optim_state_dict_to_load"
    setting = settings_in_force.setting_at(site.node, site.module, models, study)
    at_run_time = by_setting and state_dict_settings.is_for_run_time(setting, study)
    alone = bool(load.problem) or at_run_time  # the conversion, without the load of its result
    complete = load.model is not None and load.optimizer is not None and load.state is not None
    problem = "" if complete else load.problem or "the optimizer is not passed"
    if not problem and by_setting and not at_run_time:
        problem = setting.problem
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "load with set_optimizer_state_dict(model, optimizer, state)",
            models=models,
            unknown_state=problem == setting.problem,
        )
    assert load.model is not None
    assert load.optimizer is not None
    assert load.state is not None
    proposal = study.proposal()
    module = site.module
    sharded = name.startswith("flatten_sharded") or (
        by_setting and (setting.kind == "SHARDED" or optimizer_states.is_read_sharded(site))
    )
    only_rank0 = name.startswith("scatter") or (
        by_setting and not sharded and not at_run_time and setting.optim_rank0_only
    )
    message = "optim_state_dict_to_load" if at_run_time else "optimizer_state_to_load"
    if alone:
        new = _converted(load, site, proposal, message, only_rank0=only_rank0)
    else:
        message = "set_optimizer_state_dict"
        path = access_path(load.model)
        followed = path is not None and training_order.follows_model_state(site, path)
        if training_order.may_follow_evaluation(site.node, module, study) and not followed:
            training_order.reshard_before(site.statement, load.model, site, proposal)
        if sharded:
            function = proposal.name(module, DCP, message, site.node)
            new = code(
                "{f}({m}, {o}, {s})", f=function, m=load.model, o=load.optimizer, s=load.state
            )
        else:
            new = _loaded(load, site, study, proposal, models, only_rank0=only_rank0)
    if alone:
        assert isinstance(site.node, ast.expr)
        proposal.replace(module, site.node, new)
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    assert load.target is not None
    if load.branch is not None:
        assert load.assignment is not None
        proposal.replace_statement(module, load.assignment, new)
        statement = module.table.statement(load.target)
        simple = isinstance(load.branch.test, (ast.Name, ast.Attribute, ast.Call))
        template = "if not {t}:\n    {l}" if simple else "if not ({t}):\n    {l}"
        other = code(template, t=load.branch.test, l=load.target)
        proposal.replace_statement(module, statement, other)
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    proposal.replace(module, load.target, new)
    if load.assignment is not None:
        drop_assignment(load.assignment, module, study, proposal)
    return study.rewritten(site, RULE.code, message, proposal, models=models)


def _converted(
    load: optimizer_states.Load, site: Site, proposal: Proposal, name: str, *, only_rank0: bool
) -> Code:
    """This rank's part of a state, as the optimizer's own method takes it."""
    assert load.model is not None
    assert load.optimizer is not None
    assert load.state is not None
    return code(
        "{f}({m}, {o}, {s}{r})",
        f=proposal.support(site.module, name, site.node),
        m=load.model,
        o=load.optimizer,
        s=load.state,
        r=", from_rank0=True" if only_rank0 else "",
    )


def _loaded(
    load: optimizer_states.Load,
    site: Site,
    study: Study,
    proposal: Proposal,
    models: frozenset[Constructor],
    *,
    only_rank0: bool,
) -> Code:
    """The call that loads a whole state."""
    assert load.optimizer is not None
    assert load.state is not None
    assert load.model is not None
    module = site.module
    kinds = optimizer_states.kinds(load.optimizer, module, study)
    state = code("{s}", s=load.state)
    whole = code("True")
    if kinds.may_be_empty and not kinds.is_empty and not only_rank0 and not _calls(load.state):
        whole = code('bool({s}["state"])', s=load.state)  # SGD without momentum has none
    elif kinds.may_be_empty and (only_rank0 or not kinds.is_empty):
        converted = _converted(
            load, site, proposal, "optimizer_state_to_load", only_rank0=only_rank0
        )
        return code("{o}.load_state_dict({c})", o=load.optimizer, c=converted)
    if kinds.counts_steps and optimizer_states.may_share_steps(models, study):
        separate = proposal.support(module, "separate_steps", site.node)
        state = code("{f}({s})", f=separate, s=state)
    given = code("")
    if not kinds.is_empty:
        options = proposal.name(module, DCP, "StateDictOptions", site.node)
        source = ", broadcast_from_rank0=True" if only_rank0 else ""
        given = code(", options={o}(full_state_dict={w}{b})", o=options, w=whole, b=source)
    function = proposal.name(module, DCP, "set_optimizer_state_dict", site.node)
    return code(
        "{f}({m}, {p}, {s}{g})", f=function, m=load.model, p=load.optimizer, s=state, g=given
    )


def _calls(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Call) for each in ast.walk(node))
