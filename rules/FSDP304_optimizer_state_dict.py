"""Get an optimizer's state by parameter name.

## What changes
`FSDP.optim_state_dict` and `FSDP.full_optim_state_dict` become `full_optimizer_state`, a support
function around `get_optimizer_state_dict`; `FSDP.sharded_optim_state_dict`, and `optim_state_dict`
under SHARDED_STATE_DICT, become `sharded_optimizer_state`; or, where DCP reads a checkpoint into
it, `get_optimizer_state_dict(model, optimizer)`, behind `reshard_parameters(model)` unless the model's
own state was asked for just before.

A state that is taken under `if rank == 0` is gathered above the condition, where every rank takes
part.

## Why
FSDP1's statics look for flat parameters and fail on an FSDP2 model. DCP's getter, asked directly,
fails after an evaluation (the root is still gathered) and takes an optimizer step when the
optimizer has not stepped yet, which changes what Adam does next; the support functions do neither.
The result has FSDP1's layout.

## What stays for you
An explicit `optim_state_dict=` other than the optimizer's own, and a state of a function that is
only called under `if rank == 0`.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py (`_init_optim_state`)
"""

import ast
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import hoisting, statedicts
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study, block_of
from fsdp_migrate.planning.edits import Code, Proposal, code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import DCP

RULE = Rule(
    code="FSDP304",
    name="optimizer_state_dict",
    handles=(
        "FullyShardedDataParallel.optim_state_dict",
        "FullyShardedDataParallel.full_optim_state_dict",
        "FullyShardedDataParallel.sharded_optim_state_dict",
    ),
)

EXAMPLES = [
    Example(
        title="the whole state on rank 0",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = FSDP.full_optim_state_dict(model, optimizer)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state

model = fully_shard(model)
state = full_optimizer_state(model, optimizer, rank0_only=True)
""",
        support=("full_optimizer_state",),
    ),
    Example(
        title="as the context says",
        before="""\
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

model = FSDP(model)
with FSDP.state_dict_type(
    model,
    StateDictType.FULL_STATE_DICT,
    FullStateDictConfig(offload_to_cpu=True, rank0_only=True),
    FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=True),
):
    states = model.state_dict(), FSDP.optim_state_dict(model, optimizer)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state

model = fully_shard(model)
states = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
), full_optimizer_state(model, optimizer, rank0_only=True, cpu_offload=False)
""",
        support=("full_optimizer_state",),
    ),
    Example(
        title="the optimizer's own state, asked for first",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def build(net):
    return FSDP(net)


def save(model, optimizer):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        local = optimizer.state_dict()
        state = FSDP.optim_state_dict(model=model, optim=optimizer, optim_state_dict=local, group=None)
    torch.save(state, "optimizer.pt")


def train(net):
    model = build(net)
    optimizer = torch.optim.AdamW(model.parameters())
    save(model, optimizer)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state


def build(net):
    return fully_shard(net)


def save(model, optimizer):
    state = full_optimizer_state(model, optimizer)
    torch.save(state, "optimizer.pt")


def train(net):
    model = build(net)
    optimizer = torch.optim.AdamW(model.parameters())
    save(model, optimizer)
""",
        support=("full_optimizer_state",),
    ),
    Example(
        title="a state that is changed, or as it was before a step",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def changed(net, optimizer):
    model = FSDP(net)
    state = optimizer.state_dict()
    state["param_groups"][0].pop("initial_lr")
    return FSDP.optim_state_dict(model, optimizer, state)


def earlier(net, optimizer):
    model = FSDP(net)
    state = optimizer.state_dict()
    optimizer.step()
    return FSDP.optim_state_dict(model, optimizer, state)
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard


def changed(net, optimizer):
    model = fully_shard(net)
    state = optimizer.state_dict()
    state["param_groups"][0].pop("initial_lr")
    # TODO(fsdp-migrate FSDP304): The state to gather is passed as state. Use get_optimizer_state_dict with the StateDictOptions that are meant.
    return FSDP.optim_state_dict(model, optimizer, state)


def earlier(net, optimizer):
    model = fully_shard(net)
    state = optimizer.state_dict()
    optimizer.step()
    # TODO(fsdp-migrate FSDP304): The state to gather is passed as state. Use get_optimizer_state_dict with the StateDictOptions that are meant.
    return FSDP.optim_state_dict(model, optimizer, state)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="sharded",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = FSDP.sharded_optim_state_dict(model, optimizer)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import sharded_optimizer_state

model = fully_shard(model)
state = sharded_optimizer_state(model, optimizer)
""",
        support=("sharded_optimizer_state",),
    ),
    Example(
        title="sharded, for DCP to read into",
        before="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    states = {"optimizer": FSDP.optim_state_dict(model, optimizer)}
    dcp.load(states, checkpoint_id="checkpoint")
    state = FSDP.optim_state_dict_to_load(model, optimizer, states["optimizer"])
    optimizer.load_state_dict(state)
""",
        after="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard

from fsdp2_support import reshard_parameters

model = fully_shard(model)
reshard_parameters(model)
states = {"optimizer": get_optimizer_state_dict(model, optimizer)}
dcp.load(states, checkpoint_id="checkpoint")
set_optimizer_state_dict(model, optimizer, states["optimizer"])
""",
        support=("reshard_parameters",),
    ),
    Example(
        title="saved by rank 0",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
for epoch in range(epochs):
    train(model, optimizer)
    if is_main_process() and epoch % 10 == 0:
        states = {
            "model": model.state_dict(),
            "optimizer": FSDP.optim_state_dict(model, optimizer),
        }
        torch.save(states, f"{epoch}.pt")
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state

model = fully_shard(model)
for epoch in range(epochs):
    train(model, optimizer)
    if epoch % 10 == 0:
        state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
        optimizer_state = full_optimizer_state(model, optimizer)
    if is_main_process() and epoch % 10 == 0:
        states = {
            "model": state,
            "optimizer": optimizer_state,
        }
        torch.save(states, f"{epoch}.pt")
""",
        support=("full_optimizer_state",),
    ),
    Example(
        title="the optimizer's own state, passed in",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net, optimizer):
        self.model = FSDP(net)
        self.optimizer = optimizer

    def state(self):
        return FSDP.optim_state_dict(self.model, self.optimizer, self.optimizer.state_dict())
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state


class Trainer:
    def __init__(self, net, optimizer):
        self.model = fully_shard(net)
        self.optimizer = optimizer

    def state(self):
        return full_optimizer_state(self.model, self.optimizer)
""",
        support=("full_optimizer_state",),
    ),
    Example(
        title="a state of other making",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = FSDP.optim_state_dict(model, optimizer, optim_state_dict=merged(optimizer))
""",
        after="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

model = fully_shard(model)
# TODO(fsdp-migrate FSDP304): The state to gather is passed as merged(optimizer). Use get_optimizer_state_dict with the StateDictOptions that are meant.
state = FSDP.optim_state_dict(model, optimizer, optim_state_dict=merged(optimizer))
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="an optimizer that rank 0 makes",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0:
    optimizer = make()
    torch.save(FSDP.optim_state_dict(model, optimizer), "optimizer.pt")
""",
        after="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, fully_shard

model = fully_shard(model)
if rank == 0:
    optimizer = make()
    # TODO(fsdp-migrate FSDP304): The state is gathered under 'rank == 0', where not every rank takes part, and optimizer is assigned there. Use get_optimizer_state_dict with the StateDictOptions that are meant.
    torch.save(FSDP.optim_state_dict(model, optimizer), "optimizer.pt")
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="over a group, beside a model that is not FSDP's",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


class Saver:
    def __init__(self, model, optimizer, group):
        self.model, self.optimizer, self.group = model, optimizer, group

    def save(self):
        is_fsdp = isinstance(self.model, FSDP)
        if is_fsdp:
            with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
                state = self.model.state_dict()
                optim = FSDP.optim_state_dict(self.model, self.optimizer, group=self.group)
        else:
            state = self.model.state_dict()
            optim = self.optimizer.state_dict()
        return state, optim


def build(net, optimizer, group):
    return Saver(FSDP(net), optimizer, group)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, fully_shard


class Saver:
    def __init__(self, model, optimizer, group):
        self.model, self.optimizer, self.group = model, optimizer, group

    def save(self):
        is_fsdp = isinstance(self.model, FSDPModule)
        if is_fsdp:
            state = get_model_state_dict(
                self.model, options=StateDictOptions(full_state_dict=True)
            )
            # TODO(fsdp-migrate FSDP304): The state is gathered over a process group of its own. Use get_optimizer_state_dict with the StateDictOptions that are meant.
            optim = FSDP.optim_state_dict(self.model, self.optimizer, group=self.group)
        else:
            state = self.model.state_dict()
            optim = self.optimizer.state_dict()
        return state, optim


def build(net, optimizer, group):
    return Saver(fully_shard(net), optimizer, group)
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="a flag that callers choose",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def gather(model, optimizer, rank0_only=True):
    return FSDP.full_optim_state_dict(model, optimizer, rank0_only=rank0_only)


def main(net):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return gather(model, optimizer), gather(model, optimizer, rank0_only=False)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import full_optimizer_state


def gather(model, optimizer, rank0_only=True):
    return full_optimizer_state(model, optimizer, rank0_only=rank0_only)


def main(net):
    model = fully_shard(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return gather(model, optimizer), gather(model, optimizer, rank0_only=False)
""",
        support=("full_optimizer_state",),
    ),
]

KEEP = [
    Keep(
        title="a method of that name",
        source="""\
def gather(model, optimizer, rank0_only=True):
    return model.full_optim_state_dict(optimizer, rank0_only=rank0_only)
""",
    ),
    Keep(
        title="a function over a group of the project's own",
        source="""\
class Saver:
    def save(self):
        is_sharded = isinstance(self.model, Sharded)
        return self.model.state_dict(), optim_state_dict(self.model, group=self.group)
""",
    ),
    Keep(
        title="a state that is passed in",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, optimizer, state):
    return FSDP.optim_state_dict(model, optimizer, state)
""",
        left=True,
    ),
    Keep(
        title="a group of its own",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(model, optimizer, group):
    return FSDP.full_optim_state_dict(model, optimizer, group=group)
""",
        left=True,
    ),
    Keep(
        title="a state that rank 0 is given, of an optimizer that is not FSDP's",
        source="""\
import torch

if rank == 0:
    torch.save(optimizer.state_dict(), "optimizer.pt")
""",
    ),
    Keep(
        title="an optimizer's state that waits for its saving",
        source="""\
import torch


def save(model, optimizer):
    local = optimizer.state_dict()
    torch.save({"model": model.state_dict(), "optimizer": local}, "checkpoint.pt")
""",
    ),
    Keep(
        title="a method of that name with a state of its own",
        source="""\
def gathered(strategy, model, optimizer):
    local = optimizer.state_dict()
    return strategy.optim_state_dict(model=model, optim=optimizer, optim_state_dict=local)
""",
    ),
    Keep(
        title="the states of several optimizers",
        source="""\
states = [optimizer.state_dict() for optimizer in optimizers] if rank == 0 else []
""",
    ),
    Keep(
        title="an optimizer's state that DCP reads into",
        source="""\
import torch.distributed.checkpoint as dcp

states = {"optimizer": optimizer.state_dict()}
dcp.load(states, checkpoint_id="checkpoint")
""",
    ),
    Keep(
        title="DCP's getter",
        source="""\
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

state = get_optimizer_state_dict(model, optimizer)
""",
    ),
    Keep(
        title="a method of the project's own",
        source="""\
def save(self):
    if self.rank != 0:
        return None
    return self.optim_state_dict(self.model, self.optimizer, self.optimizer.state_dict())
""",
    ),
    Keep(
        title="a function of the same name",
        source="""\
def full_optim_state_dict(model, optimizer):
    return optimizer.state_dict()


state = full_optim_state_dict(model, optimizer)
""",
    ),
]

ARGUMENTS = {
    "optim_state_dict": ("model", "optim", "optim_state_dict", "group"),
    "full_optim_state_dict": ("model", "optim", "optim_input", "rank0_only", "group"),
    "sharded_optim_state_dict": ("model", "optim", "group"),
}

LOADING = "torch.distributed.checkpoint"
READERS = frozenset(
    f"{LOADING}{part}.{name}"
    for part in ("", ".state_dict_loader")
    for name in ("load", "load_state_dict")
)


def decide(site: Site, study: Study) -> Decision:
    name = site.construct.rpartition(".")[2]
    call = site.node
    bound = statedicts.arguments(call, ARGUMENTS[name]) if isinstance(call, ast.Call) else None
    model = bound.get("model") if bound else None
    models = study.models_of_static(model, site.module).constructors
    setting = statedicts.at(site.node, site.module, models, study)
    by_setting = name == "optim_state_dict"
    at_run_time = by_setting and statedicts.is_for_run_time(setting, study)
    held = _held_state(bound, site)
    problem = _unreadable(bound, held)
    if by_setting and not problem:
        problem = "" if at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    rank0_only: bool | None = setting.optim_rank0_only
    if name == "full_optim_state_dict":
        rank0_only = rank0 = _rank0_only(bound, site, study)
        setting = replace(setting, optim_offload=True, optim_rank0_only=bool(rank0))
    sharded = name == "sharded_optim_state_dict" or (by_setting and setting.kind == "SHARDED")
    found_at = hoisting.Standing()
    if not problem and not sharded:
        assert bound is not None
        needed = (bound["model"], bound["optim"])
        found_at = hoisting.standing(site, needed, study)
        problem = found_at.problem
        if rank0_only is None and found_at.place is not None:
            problem = "rank0_only is only known at run time"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use get_optimizer_state_dict with the StateDictOptions that are meant",
            models=models,
            unknown_state=unknown,
        )
    assert bound is not None
    proposal = study.proposal()
    if held is not None:
        proposal.delete(site.module, held)
    place = found_at.place
    if at_run_time:
        message = "optim_state_dict"
        get = proposal.support(site.module, message, site.node)
        new = code("{g}({m}, {o})", g=get, m=bound["model"], o=bound["optim"])
    elif sharded:
        filled = _is_read_into(site, study)
        new, message = _sharded(bound, site, proposal, filled=filled)
    else:
        near = site.node if place is None else place.statement
        get = proposal.support(site.module, "full_optimizer_state", near)
        flags = ", rank0_only=True" if setting.optim_rank0_only else ""
        flags = flags if rank0_only is not None else ", rank0_only={r}"
        flags += "" if setting.optim_offload else ", cpu_offload=False"
        new = code(
            f"{{g}}({{m}}, {{o}}{flags})",
            g=get,
            m=hoisting.spelled(bound["model"], place),
            o=hoisting.spelled(bound["optim"], place),
            r=bound.get("rank0_only", ""),
        )
        message = "full_optimizer_state"
    if place is not None:
        message += f", gathered above '{place.guard}'"
    review, marked = hoisting.put(site, found_at, new, "optimizer_state", proposal, RULE.code)
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, marked=marked
    )


def _unreadable(bound: dict[str, ast.expr] | None, held: ast.Assign | None) -> str:
    """Why a call cannot be understood, or an empty text."""
    if bound is None or "model" not in bound or "optim" not in bound:
        return "its arguments cannot be read"
    if statedicts.has_group(bound):
        return "the state is gathered over a process group of its own"
    state = bound.get("optim_state_dict")
    if state is None or held is not None or _is_own_state(state, bound["optim"]):
        return ""
    return f"the state to gather is passed as {ast.unparse(state)}"


def _held_state(bound: dict[str, ast.expr] | None, site: Site) -> ast.Assign | None:
    """``state = optimizer.state_dict()`` in front of the call, when ``state`` is for it alone."""
    state, optimizer = (bound or {}).get("optim_state_dict"), (bound or {}).get("optim")
    if not isinstance(state, ast.Name) or optimizer is None:
        return None
    table = site.module.table
    block = block_of(table.parents[site.statement], site.statement)
    scope = table.scope_of(state)
    uses = [n for n in table.names if n.id == state.id and table.scope_of(n) is scope]
    if block is None or len(uses) != 2 or not scope.is_function:
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


def _sharded(
    bound: dict[str, ast.expr], site: Site, proposal: Proposal, *, filled: bool
) -> tuple[Code, str]:
    """The sharded state: ``filled`` also when the optimizer has not stepped, to be read into."""
    model, optimizer = bound["model"], bound["optim"]
    if not filled:
        get = proposal.support(site.module, "sharded_optimizer_state", site.node)
        new = code("{g}({m}, {o})", g=get, m=model, o=optimizer)
        return new, "sharded_optimizer_state"
    get = proposal.name(site.module, DCP, "get_optimizer_state_dict", site.node)
    path = access_path(model)
    if path is not None and not _follows_model_state(site, path):
        reshard = proposal.support(site.module, "reshard_parameters", site.node)
        line = code("{f}({m})", f=reshard, m=path)
        proposal.insert_before(site.module, site.statement, line)
    return code("{g}({m}, {o})", g=get, m=model, o=optimizer), "get_optimizer_state_dict"


def _is_read_into(site: Site, study: Study) -> bool:
    """Whether DCP reads a checkpoint further down in the same function."""
    function = enclosing_function(site.module, site.node)
    return any(
        study.external(call.func, site.module) & READERS
        for call in site.module.table.calls
        if enclosing_function(site.module, call) is function
        and site.module.position(call) > site.position
    )


def _follows_model_state(site: Site, path: str) -> bool:
    """Whether the model's own state is asked for shortly before, which reshards its parameters."""
    table = site.module.table
    block = block_of(table.parents[site.statement], site.statement) or [site.statement]
    for statement in block[: block.index(site.statement) + 1]:
        for node in ast.walk(statement):
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr == "state_dict":
                earlier = site.module.position(method) < site.position
                if earlier and access_path(method.value) == path:
                    return True
    return False
