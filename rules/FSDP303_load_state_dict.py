"""Load a whole model state into sharded parameters.

## What changes
`model.load_state_dict(state)` becomes `load_full_model(model, state)`, a support function around
`set_model_state_dict(..., StateDictOptions(full_state_dict=True))`; under SHARDED_STATE_DICT it becomes
`set_model_state_dict(model, state)`.

## Why
Plain tensors do not fit `DTensor` parameters. DCP's own strictness has holes: a missing key goes
unnoticed without broadcast, an unexpected one raises on rank 0 alone. The support function checks keys
and fails on every rank, as `load_state_dict(strict=True)` did.

## What stays for you
`assign=True`, and states in the LOCAL form.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py (`_load_model_state_dict`)
"""

import ast

from fsdp_migrate import statedicts
from fsdp_migrate.proposal import code
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sharding import DCP
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP303",
    name="load_state_dict",
    handles=("FullyShardedDataParallel.load_state_dict",),
)

EXAMPLES: list[Example] = []
KEEP: list[Keep] = []


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    models = study.models(site.receiver, site.module).constructors
    setting = statedicts.at(site.node, site.module, models, study)
    problem = setting.problem
    if setting.kind == "LOCAL":
        problem = "LOCAL_STATE_DICT has no counterpart in FSDP2"
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
        )
    assert bound is not None
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    strict = [code(", strict={s}", s=bound["strict"])] if "strict" in bound else [code("")]
    if setting.kind == "FULL":
        name = proposal.support(site.module, "load_full_model", call)
        new = code("{f}({m}, {s}{k})", f=name, m=site.receiver, s=bound["state_dict"], k=strict[0])
        message = "load_full_model"
    else:
        name = proposal.name(site.module, DCP, "set_model_state_dict", call)
        if "strict" in bound:
            options = proposal.name(site.module, DCP, "StateDictOptions", call)
            strict = [code(", options={o}(strict={s})", o=options, s=bound["strict"])]
        new = code("{f}({m}, {s}{k})", f=name, m=site.receiver, s=bound["state_dict"], k=strict[0])
        message = "set_model_state_dict"
    proposal.replace(site.module, call, new)
    return study.rewritten(site, RULE.code, message, proposal, models=models)
