"""Load a whole model state into sharded parameters."""

import ast

from fsdp_migrate.families.checkpoints import holders, settings_in_force, state_dict_settings
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import present

RULE = Rule(
    code="FSDP303",
    name="load_state_dict",
    handles=("FullyShardedDataParallel.load_state_dict",),
)


def decide(site: Site, study: Study) -> Decision:
    parts = holders.sharded_parts(site.subject, site.module, study)
    models = parts.constructors or study.models(site.subject, site.module).constructors
    setting = settings_in_force.setting_at(site.node, site.module, models, study)
    setting = state_dict_settings.effective_setting(setting, models, study)
    at_run_time = state_dict_settings.is_for_run_time(setting, study)
    problem = "" if at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    call = site.node
    bound = None
    if isinstance(call, ast.Call):
        bound = bind_arguments(call, ("state_dict", "strict", "assign"))
    if bound is None or "state_dict" not in bound:
        problem = "its arguments cannot be read"
    elif "assign" in bound:
        problem = "assign=True would leave the optimizer with the old parameters"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use set_model_state_dict with the StateDictOptions that are meant",
            models=models,
            unknown_state=unknown,
        )
    bound = present(bound)
    call = site.call
    surely = settings_in_force.is_surely_set(call, site.module, models, study)
    if at_run_time and surely:
        message = "kept: the model is set to the state it takes"
        return study.rewritten(site, RULE.code, message, models=models)
    proposal = study.proposal()
    strict = [code(", strict={s}", s=bound["strict"])] if "strict" in bound else [code("")]
    if at_run_time or setting.kind == "FULL":
        message = "load_model_state_dict" if at_run_time else "load_full_model"
        name = proposal.support(site.module, message, call)
        new = code("{f}({m}, {s}{k})", f=name, m=site.subject, s=bound["state_dict"], k=strict[0])
    else:
        name = proposal.name(site.module, DCP, "set_model_state_dict", call)
        if "strict" in bound:
            options = proposal.name(site.module, DCP, "StateDictOptions", call)
            strict = [code(", options={o}(strict={s})", o=options, s=bound["strict"])]
        new = code("{f}({m}, {s}{k})", f=name, m=site.subject, s=bound["state_dict"], k=strict[0])
        message = "set_model_state_dict"
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, message, proposal, models=models)
