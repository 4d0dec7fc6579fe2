"""Load a whole model state into sharded parameters."""

import ast

from fsdp_migrate.families.checkpoints import holders, statedicts
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP

RULE = Rule(
    code="FSDP303",
    name="load_state_dict",
    handles=("FullyShardedDataParallel.load_state_dict",),
)


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    parts = holders.held(site.receiver, site.module, study)
    models = parts.constructors or study.models(site.receiver, site.module).constructors
    setting = statedicts.at(site.node, site.module, models, study)
    setting = statedicts.given(setting, models, study)
    at_run_time = statedicts.is_for_run_time(setting, study)
    problem = "" if at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    call = site.node
    bound = None
    if isinstance(call, ast.Call):
        bound = statedicts.arguments(call, ("state_dict", "strict", "assign"))
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
    assert bound is not None
    assert isinstance(call, ast.Call)
    surely = statedicts.is_surely_set(call, site.module, models, study)
    if at_run_time and surely:
        message = "kept: the model is set to the state it takes"
        return study.rewritten(site, RULE.code, message, models=models)
    proposal = study.proposal()
    strict = [code(", strict={s}", s=bound["strict"])] if "strict" in bound else [code("")]
    if at_run_time or setting.kind == "FULL":
        message = "load_model_state_dict" if at_run_time else "load_full_model"
        name = proposal.support(site.module, message, call)
        new = code("{f}({m}, {s}{k})", f=name, m=site.receiver, s=bound["state_dict"], k=strict[0])
    else:
        name = proposal.name(site.module, DCP, "set_model_state_dict", call)
        if "strict" in bound:
            options = proposal.name(site.module, DCP, "StateDictOptions", call)
            strict = [code(", options={o}(strict={s})", o=options, s=bound["strict"])]
        new = code("{f}({m}, {s}{k})", f=name, m=site.receiver, s=bound["state_dict"], k=strict[0])
        message = "set_model_state_dict"
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, message, proposal, models=models)
