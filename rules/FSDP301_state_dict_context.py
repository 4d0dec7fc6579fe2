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

from fsdp_migrate import statedicts
from fsdp_migrate.proposal import code
from fsdp_migrate.rule import Example, Keep, Outcome, Rule
from fsdp_migrate.sharding import Constructor
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study
from fsdp_migrate.trace.values import Function

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

from fsdp2_support import model_state_dict, state_dict_type


model = fully_shard(model)
with state_dict_type(model, kind):
    state = model_state_dict(model)
""",
        support=(
            "model_state_dict",
            "state_dict_type",
        ),
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
]

KEEP = [
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
]

# Methods of a model that do not ask for its state.
QUIET_METHODS = frozenset(
    {"train", "eval", "parameters", "named_parameters", "modules", "named_modules", "zero_grad"}
)


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    assert isinstance(call, ast.Call)
    found = study.models_of_static(statedicts.first_argument(call), site.module)
    models = found.constructors
    setting = statedicts.read(call, site.module, study)
    if setting.problem and not study.run_time_states:
        return study.left(
            site,
            RULE.code,
            setting.problem,
            "choose the StateDictOptions at each state dict call",
            models=models,
            unknown_state=True,
        )
    place = _item(site, call)
    if place is None and study.run_time_states:
        return _kept(site, study, models)
    if place is None:
        return study.left(
            site,
            RULE.code,
            "the state_dict_type context is not entered by a with statement here",
            "write StateDictOptions at the state dict calls it is meant for",
            models=models,
            unknown_state=True,
        )
    statement, index = place
    # Sharded states are what a model gives of itself: outsiders need not be told.
    stranger = _handed_out(statement, call, site, study) if setting.kind == "FULL" else ""
    if stranger:
        return study.left(
            site,
            RULE.code,
            f"{stranger} may ask the model for its state and is outside the given paths",
            "pass it get_model_state_dict(...) explicitly",
            models=models,
        )
    if study.run_time_states and (setting.problem or _runs_project(statement, site, study)):
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


def _runs_project(statement: ast.With | ast.AsyncWith, site: Site, study: Study) -> bool:
    """Whether functions of the project run in the block, which may ask for states themselves."""
    calls = [n for body in statement.body for n in ast.walk(body) if isinstance(n, ast.Call)]
    return any(
        isinstance(value, Function)
        for call in calls
        for value in study.values(call.func, site.module)
    )


def _item(site: Site, call: ast.Call) -> tuple[ast.With | ast.AsyncWith, int] | None:
    item = site.module.table.parents[call]
    if not isinstance(item, ast.withitem) or item.optional_vars is not None:
        return None
    statement = site.module.table.parents[item]
    assert isinstance(statement, (ast.With, ast.AsyncWith))
    return statement, statement.items.index(item)


def _handed_out(
    statement: ast.With | ast.AsyncWith, context: ast.Call, site: Site, study: Study
) -> str:
    """A call in the body that gives the model to code outside the given paths."""
    for body in statement.body:
        for node in ast.walk(body):
            if not isinstance(node, ast.Call):
                continue
            if node in study.settled or _is_ours(node, site, study):
                continue
            passed = [*node.args, *(k.value for k in node.keywords)]
            if any(study.models(a, site.module) for a in passed):
                return f"{ast.unparse(node.func)}()"
            method = node.func if isinstance(node.func, ast.Attribute) else None
            on_model = method is not None and study.models(method.value, site.module)
            if method is not None and on_model and method.attr not in QUIET_METHODS:
                return f"{ast.unparse(node.func)}()"
    return ""


def _is_ours(call: ast.Call, site: Site, study: Study) -> bool:
    """FSDP's own statics, state dict methods, and functions of the project."""
    names = study.external(call.func, site.module)
    if any(name.startswith("torch.") for name in names):
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr in {"state_dict", "load_state_dict"}:
        return True
    return (bool(names) and all(name.startswith("builtins.") for name in names)) or any(
        isinstance(v, Function) for v in study.values(call.func, site.module)
    )
