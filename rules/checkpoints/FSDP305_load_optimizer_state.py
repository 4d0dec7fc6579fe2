"""Load an optimizer's whole state, old FSDP1 files included."""

import ast

from fsdp_migrate.families.checkpoints import (
    optimizer_states,
    settings_in_force,
    state_dict_settings,
)
from fsdp_migrate.families.names.deletions import drop_assignment
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
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
    ),
)


def decide(site: Site, study: Study) -> Decision:
    name = site.construct.last
    load = optimizer_states.read_load(site, name, study)
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
    proposal = study.proposal()
    module = site.module
    sharded = name.startswith("flatten_sharded") or (by_setting and setting.kind == "SHARDED")
    if at_run_time:
        message = "optim_state_dict_to_load"
    elif alone:
        message = "optimizer_state_to_load"
    else:
        message = "set_optimizer_state_dict" if sharded else "load_full_optimizer"
    if sharded and not alone:
        function = proposal.name(module, DCP, message, site.node)
    else:
        function = proposal.support(module, message, site.node)
    only_rank0 = name.startswith("scatter") or (
        by_setting and not sharded and not at_run_time and setting.optim_rank0_only
    )
    new = code(
        "{f}({m}, {o}, {s}{r})",
        f=function,
        m=present(load.model),
        o=present(load.optimizer),
        s=present(load.state),
        r=", from_rank0=True" if only_rank0 else "",
    )
    if alone:
        proposal.replace(module, site.expression, new)
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    if load.branch is not None:
        proposal.replace_statement(module, present(load.assignment), new)
        statement = module.table.statement(present(load.target))
        simple = isinstance(load.branch.test, (ast.Name, ast.Attribute, ast.Call))
        template = "if not {t}:\n    {l}" if simple else "if not ({t}):\n    {l}"
        other = code(template, t=load.branch.test, l=present(load.target))
        proposal.replace_statement(module, statement, other)
        return study.rewritten(site, RULE.code, message, proposal, models=models)
    proposal.replace(module, present(load.target), new)
    if load.assignment is not None:
        drop_assignment(load.assignment, module, study, proposal)
    return study.rewritten(site, RULE.code, message, proposal, models=models)
