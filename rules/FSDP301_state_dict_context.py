"""Remove the `state_dict_type` context: FSDP2 chooses at the call.

## What changes
`with FSDP.state_dict_type(model, ...):` disappears and its body moves out one level. The state dict
calls inside it carry the settings themselves (FSDP302 to FSDP305).

## Why
FSDP2 has no such hidden state. Left in place, the context raises `KeyError: None` on its way out,
after the shards were already written as if they were the whole model.

## What stays for you
Contexts whose type is only known at run time, LOCAL_STATE_DICT (load it once with the old code at
the same world size and save it as FULL, then migrate), and contexts whose body hands the model to a
function outside the given paths, which may ask it for its state.

## Since torch
2.6

## References
- torch/distributed/checkpoint/state_dict.py
- torch/distributed/fsdp/fully_sharded_data_parallel.py (`state_dict_type`)
"""

import ast
from collections.abc import Iterable

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.checkpoints import holders, statedicts
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP301",
    name="state_dict_context",
    handles=("FullyShardedDataParallel.state_dict_type",),
)

EXAMPLES = [
    Example(
        title="a save of the whole model",
        before="""\
import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):
    state = model.state_dict()
    # every rank is here
    print(len(state))
if rank == 0:
    torch.save(state, "model.pt")
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
state = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
# every rank is here
print(len(state))
if rank == 0:
    torch.save(state, "model.pt")
""",
    ),
    Example(
        title="asked of the model",
        before="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def save(net, path):
    model = FSDP(net)
    with model.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        dcp.save({"model": model.state_dict()}, checkpoint_id=path)
""",
        after="""\
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(net, path):
    model = fully_shard(net)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=path)
""",
    ),
    Example(
        title="two managers in one statement",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with torch.no_grad(), FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = model.state_dict()
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
with torch.no_grad():
    state = get_model_state_dict(model)
""",
    ),
    Example(
        title="the calls are made by a function that is only called inside",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)


def snapshot():
    return model.state_dict()


with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = snapshot()
""",
        after="""\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)


def snapshot():
    return get_model_state_dict(model)


state = snapshot()
""",
    ),
    Example(
        title="a type that is only known at run time",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


model = FSDP(model)
with FSDP.state_dict_type(model, kind):
    state = model.state_dict()
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import state_dict_type


model = fully_shard(model)
with state_dict_type(model, kind):
    state = model.state_dict()
""",
        support=("state_dict_type",),
    ),
    Example(
        title="the state of each rank",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
    state = model.state_dict()
""",
        after="""\
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


model = fully_shard(model)
# TODO(fsdp-migrate FSDP301): Each rank's state now holds its shard of every parameter: it is saved and loaded as before, but files in FSDP1's LOCAL form do not load.
state = get_model_state_dict(model)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="branches that import for themselves",
        before="""\
def state_of(model, kind):
    if kind == "plain":
        from copy import deepcopy

        return deepcopy(model.state_dict())
    elif kind == "whole":
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

        model = unwrap(model)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            return model.state_dict()


def build(net):
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    return FSDP(net)
""",
        after="""\
def state_of(model, kind):
    if kind == "plain":
        from copy import deepcopy

        return deepcopy(model.state_dict())
    elif kind == "whole":
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

        model = unwrap(model)
        return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))


def build(net):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net)
""",
    ),
    Example(
        title="a kind that is looked up by name",
        before="""\
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@contextmanager
def chosen(model, kind):
    with FSDP.state_dict_type(model, StateDictType[kind]):
        yield


def main(net, kind):
    model = FSDP(net)
    with chosen(model, kind):
        torch.save(model.state_dict(), "part.pt")
    return model
""",
        after="""\
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType, state_dict_type


@contextmanager
def chosen(model, kind):
    with state_dict_type(model, StateDictType[kind]):
        yield


def main(net, kind):
    model = fully_shard(net)
    with chosen(model, kind):
        torch.save(model.state_dict(), "part.pt")
    return model
""",
        support=(
            "StateDictType",
            "state_dict_type",
        ),
    ),
    Example(
        title="contexts by name, and in one case only",
        before="""\
from contextlib import nullcontext

import torch
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, is_fsdp):
    model = FSDP(net)
    context = FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    with context:
        torch.save(model.state_dict(), "part.pt")
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT) if is_fsdp else nullcontext():
        torch.save(model.state_dict(), "part.pt")
    return model
""",
        after="""\
from contextlib import nullcontext

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType, model_state_dict, state_dict_type


def main(net, is_fsdp):
    model = fully_shard(net)
    context = state_dict_type(model, StateDictType.SHARDED_STATE_DICT)
    with context:
        torch.save(get_model_state_dict(model), "part.pt")
    with state_dict_type(model, StateDictType.SHARDED_STATE_DICT) if is_fsdp else nullcontext():
        torch.save(model_state_dict(model), "part.pt")
    return model
""",
        support=(
            "StateDictType",
            "model_state_dict",
            "state_dict_type",
        ),
    ),
    Example(
        title="context managers of the project's own",
        before="""\
from contextlib import contextmanager

import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@contextmanager
def whole(model):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        yield


def sharded(model):
    return FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT)


def main(net):
    model = FSDP(net)
    with whole(model):
        torch.save(model.state_dict(), "whole.pt")
    with sharded(model):
        torch.save(model.state_dict(), "part.pt")
    return model
""",
        after="""\
from contextlib import contextmanager

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import FullStateDictConfig, StateDictType, state_dict_type


@contextmanager
def whole(model):
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        yield


def sharded(model):
    return state_dict_type(model, StateDictType.SHARDED_STATE_DICT)


def main(net):
    model = fully_shard(net)
    with whole(model):
        torch.save(get_model_state_dict(
            model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        ), "whole.pt")
    with sharded(model):
        torch.save(get_model_state_dict(model), "part.pt")
    return model
""",
        support=(
            "FullStateDictConfig",
            "StateDictType",
            "state_dict_type",
        ),
    ),
]

KEEP = [
    Keep(
        title="a context manager that is not FSDP1's",
        source="""\
from contextlib import contextmanager


@contextmanager
def whole(model):
    with model.state_dict_type("full"):
        yield


def save(model):
    with whole(model):
        return model.state_dict()
""",
    ),
    Keep(
        title="contexts of something else",
        source="""\
from contextlib import ExitStack


def save(model, contexts):
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context.state_dict_type(model))
        return model.state_dict()
""",
    ),
    Keep(
        title="an enum of the project's own",
        source="""\
from enum import Enum


class StateDictType(Enum):
    FULL_STATE_DICT = 1


def kind(name):
    return StateDictType[name]
""",
    ),
    Keep(
        title="a context that is bound by functools.partial",
        source="""\
from functools import partial
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

context = partial(FSDP.state_dict_type, state_dict_type=StateDictType.SHARDED_STATE_DICT)


def save(net, path):
    model = FSDP(net)
    with context(model):
        torch.save(model.state_dict(), path)
""",
        left=True,
    ),
    Keep(
        title="a context that is passed on as a value",
        source="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def save(net, path, context=FSDP.state_dict_type):
    model = FSDP(net)
    with context(model, StateDictType.FULL_STATE_DICT):
        torch.save(model.state_dict(), path)
""",
        left=True,
    ),
    Keep(
        title="a context that is not entered here",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def whole(model):
    # No model is wrapped in these paths: nothing here is touched.
    return FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)
""",
        left=True,
    ),
    Keep(
        title="a context of another kind",
        source="""\
import contextlib

with contextlib.suppress(OSError):
    state = model.state_dict()
""",
    ),
    Keep(
        title="the state of another wrapper",
        source="""\
with accelerator.state_dict_type(model):
    state = model.state_dict()
""",
    ),
    Keep(
        title="a setting by name",
        source="""\
settings = {"state_dict_type": "LOCAL_STATE_DICT"}
""",
    ),
    Keep(
        title="the plain state of a model",
        source="""\
state = model.state_dict()
""",
    ),
    Keep(
        title="the states of both kinds of model",
        source="""\
def state_of(model):
    return model.module.state_dict() if hasattr(model, "module") else model.state_dict()
""",
    ),
]

# Methods of a model that do not ask for its state.
STATES = frozenset({"state_dict", "load_state_dict", "save_pretrained"})
OTHERS = ("optim", "sched", "scaler", "loader", "sampler")  # that have states of their own
DEPTH = 3  # how many calls deep functions of the project are looked into
QUIET_METHODS = frozenset(
    {"train", "eval", "parameters", "named_parameters", "modules", "named_modules", "zero_grad"}
)


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    if not isinstance(call, ast.Call) or call.func is not site.reference:
        return study.left(
            site,
            RULE.code,
            f"{ast.unparse(site.reference)} is passed on as a value",
            "call it in a with statement, and run again",
            models=study.constructors.values(),
            quiet=True,
        )
    models = statedicts.concerned(statedicts.first_argument(call), site.module, study)
    setting = statedicts.read(call, site.module, study)
    place = _item(site, call)
    if setting.problem or place is None:
        return _kept(site, study, models)
    statement, index = place
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for b in statement.body for n in ast.walk(b)):
        return _kept(site, study, models)  # other code runs in it
    # Sharded states are what a model gives of itself: nobody need be told.
    if setting.kind == "FULL" and _is_felt_elsewhere(statement, call, site, study):
        return _kept(site, study, models)
    proposal = study.proposal()
    proposal.unwrap(site.module, statement, index)
    review = statedicts.LOCAL if setting.local else ""
    message = f"context removed ({setting})"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _kept(site: Site, study: Study, models: Iterable[Constructor]) -> Decision:
    """The context stays, as a support function's."""
    proposal = study.proposal()
    name = proposal.support(site.module, "state_dict_type", site.node)
    assert isinstance(site.reference, ast.expr)
    proposal.replace(site.module, site.reference, code("{n}", n=name))
    study.kept.add(site.node)
    return study.rewritten(site, RULE.code, "state_dict_type", proposal, models=models)


def _item(site: Site, call: ast.Call) -> tuple[ast.With | ast.AsyncWith, int] | None:
    item = site.module.table.parents[call]
    if not isinstance(item, ast.withitem) or item.optional_vars is not None:
        return None
    statement = site.module.table.parents[item]
    assert isinstance(statement, (ast.With, ast.AsyncWith))
    return statement, statement.items.index(item)


def _is_felt_elsewhere(
    statement: ast.With | ast.AsyncWith, context: ast.Call, site: Site, study: Study
) -> bool:
    """Whether code that is not rewritten here asks for a state in the block."""
    return any(
        node is not context and _asks(node, site.module, study, DEPTH)
        for body in statement.body
        for node in ast.walk(body)
        if isinstance(node, ast.Call)
    )


def _asks(call: ast.Call, module: Module, study: Study, depth: int) -> bool:
    method = call.func if isinstance(call.func, ast.Attribute) else None
    names = study.external(call.func, module)
    if any(name.startswith("torch.") for name in names):
        return False
    if method is not None and method.attr in STATES:
        path = (access_path(method.value) or "").lower()
        if any(word in path for word in OTHERS):
            return False
        parts = holders.held(method.value, module, study)
        return not parts and not study.models(method.value, module)  # else a site of its own
    functions = [v for v in study.values(call.func, module) if isinstance(v, Function)]
    if functions:
        return depth == 0 or any(_does_ask(each, study, depth - 1) for each in functions)
    if bool(names) and all(name.startswith("builtins.") for name in names):
        return False
    passed = [*call.args, *(k.value for k in call.keywords)]
    if any(study.models(a, module) or holders.held(a, module, study) for a in passed):
        return True  # somebody outside has the model
    on_model = method is not None and bool(study.models(method.value, module))
    return on_model and method is not None and method.attr not in QUIET_METHODS


def _does_ask(function: Function, study: Study, depth: int) -> bool:
    return any(
        _asks(node, function.module, study, depth)
        for node in ast.walk(function.node)
        if isinstance(node, ast.Call)
    )
