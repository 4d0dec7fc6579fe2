"""Rename the entries of an optimizer state without FSDP1.

## What changes
`FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, model)` becomes
`rekey_optimizer_state(state, model, by_name=True)`, and `PARAM_ID` `by_name=False`: a support
function of a few lines that only renames.

## Why
The function belongs to FSDP1's class. Dropping it would do for states that `load_full_optimizer`
takes, which accepts both kinds of keys, but only where both count parameters in the same order.

## What stays for you
A key type that only the running program knows.

## Since torch
2.6

## References
- torch/distributed/fsdp/fully_sharded_data_parallel.py (`rekey_optim_state_dict`)
"""

import ast

from fsdp_migrate.families.checkpoints import statedicts
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP311",
    name="rekey_optimizer_state",
    handles=("FullyShardedDataParallel.rekey_optim_state_dict",),
)

EXAMPLES = [
    Example(
        title="a state of a model that was not wrapped",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType


def resume(net, path):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
    state = torch.load(path)
    state = FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, model)
    optimizer.load_state_dict(FSDP.shard_full_optim_state_dict(state, model, optim=optimizer))
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import load_full_optimizer, rekey_optimizer_state


def resume(net, path):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters())
    state = torch.load(path)
    state = rekey_optimizer_state(state, model, by_name=True)
    load_full_optimizer(model, optimizer, state)
""",
        support=(
            "load_full_optimizer",
            "rekey_optimizer_state",
        ),
    ),
    Example(
        title="a state for a model that is not wrapped",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.fully_sharded_data_parallel import OptimStateKeyType

model = FSDP(model)
state = FSDP.full_optim_state_dict(model, optimizer)
if rank == 0:
    state = FSDP.rekey_optim_state_dict(
        optim_state_dict=state,
        optim_state_key_type=OptimStateKeyType.PARAM_ID,
        model=plain,
        optim=plain_optimizer,
    )
    torch.save(state, "optimizer.pt")
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state, rekey_optimizer_state

model = fully_shard(model)
state = full_optimizer_state(model, optimizer, rank0_only=True)
if rank == 0:
    state = rekey_optimizer_state(state, plain, optim=plain_optimizer, by_name=False)
    torch.save(state, "optimizer.pt")
""",
        support=(
            "full_optimizer_state",
            "rekey_optimizer_state",
        ),
    ),
    Example(
        title="for a list of parameters",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, OptimStateKeyType


def convert(net, state):
    model = FSDP(net)
    groups = list(model.parameters())
    return FSDP.rekey_optim_state_dict(state, OptimStateKeyType.PARAM_NAME, model, groups)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import rekey_optimizer_state


def convert(net, state):
    model = fully_shard(net)
    groups = list(model.parameters())
    return rekey_optimizer_state(state, model, optim_input=groups, by_name=True)
""",
        support=("rekey_optimizer_state",),
    ),
]

KEEP = [
    Keep(
        title="a kind of key that is chosen at run time",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def convert(model, state, kind):
    return FSDP.rekey_optim_state_dict(state, kind, model)
""",
        left=True,
    ),
    Keep(
        title="keys that are renamed by hand",
        source="""\
names = [name for name, _ in model.named_parameters()]
state["state"] = {names[index]: value for index, value in state["state"].items()}
""",
    ),
    Keep(
        title="a function of the project's own",
        source="""\
from checkpoints import rekey_optim_state_dict

state = rekey_optim_state_dict(state, "name", model)
""",
    ),
]

ARGUMENTS = ("optim_state_dict", "optim_state_key_type", "model", "optim_input", "optim")


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    bound = statedicts.arguments(call, ARGUMENTS) if isinstance(call, ast.Call) else None
    model = bound.get("model") if bound else None
    models = study.models(model, site.module).constructors if model is not None else frozenset()
    models = models or frozenset(study.constructors.values())
    kind = bound.get("optim_state_key_type") if bound else None
    names = set()
    if kind is not None:
        names = {fsdp1.canonical(q) or "?" for q in study.external(kind, site.module)}
    by_name = names == {"OptimStateKeyType.PARAM_NAME"}
    known = by_name or names == {"OptimStateKeyType.PARAM_ID"}
    if bound is None or model is None or "optim_state_dict" not in bound or not known:
        return study.left(
            site,
            RULE.code,
            "the kind of keys is only known at run time" if bound else "it cannot be read",
            "rename the entries of the state with the names of model.named_parameters()",
            models=models,
        )
    proposal = study.proposal()
    function = proposal.support(site.module, "rekey_optimizer_state", site.node)
    arguments = [code("{s}", s=bound["optim_state_dict"]), code("{m}", m=model)]
    arguments += [
        code(f"{name}={{v}}", v=bound[name]) for name in ("optim_input", "optim") if name in bound
    ]
    arguments.append(code(f"by_name={by_name}"))
    new = code("{f}({a})", f=function, a=join(", ", arguments))
    assert isinstance(site.node, ast.expr)
    proposal.replace(site.module, site.node, new)
    return study.rewritten(site, RULE.code, "rekey_optimizer_state", proposal, models=models)
