"""Give whole states to `save_pretrained` and to functions of other libraries.

## What changes
`model.save_pretrained(directory)` gets `state_dict=get_model_state_dict(model, ...)` with the whole
model. Calls such as `peft.get_peft_model_state_dict(model)` and
`safetensors.torch.save_model(model, path)` move into `with whole_states(model):`, a support
function.

## Why
They ask the model for its state by themselves. FSDP1 answered with the whole model; FSDP2
answers with this rank's shards, and those would be written without an error.

## What stays for you
As with FSDP1, every rank must call it. Calls that already pass a `state_dict` are left alone.

## Since torch
2.6

## References
- https://huggingface.co/docs/transformers/main_classes/model (`save_pretrained`)
"""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import hoisting, holders, ranks, statedicts
from fsdp_migrate.fsdp1.references import STATE_FUNCTION
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.rule import Example, Keep, Rule
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.scopes import COMPREHENSIONS

RULE = Rule(
    code="FSDP308",
    name="save_pretrained",
    handles=(
        "FullyShardedDataParallel.save_pretrained",
        "function that asks a model for its state",
    ),
)

EXAMPLES = [
    Example(
        title="a model of transformers",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.save_pretrained("out")
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
model.save_pretrained(
    "out", state_dict=get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
)
""",
    ),
    Example(
        title="with arguments",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
model.save_pretrained("out", safe_serialization=True)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
model.save_pretrained(
    "out",
    safe_serialization=True,
    state_dict=get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)),
)
""",
    ),
    Example(
        title="an attribute",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Trainer:
    def __init__(self, model):
        self.model = FSDP(model)

    def save(self, directory):
        self.model.save_pretrained(directory)
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

class Trainer:
    def __init__(self, model):
        self.model = fully_shard(model)

    def save(self, directory):
        self.model.save_pretrained(
            directory,
            state_dict=get_model_state_dict(
                self.model, options=StateDictOptions(full_state_dict=True)
            ),
        )
""",
    ),
    Example(
        title="a function of another library",
        before="""\
import torch
from peft import get_peft_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
state = get_peft_model_state_dict(model)
if rank == 0:
    torch.save(state, "adapter.pt")
""",
        after="""\
import torch
from peft import get_peft_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import whole_states

model = fully_shard(model)
with whole_states(model):
    state = get_peft_model_state_dict(model)
if rank == 0:
    torch.save(state, "adapter.pt")
""",
        support=("whole_states",),
    ),
    Example(
        title="functions that save and load",
        before="""\
import safetensors.torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)

    def save(self, path):
        safetensors.torch.save_model(self.model, path)  # on every rank

    def load(self, path):
        return safetensors.torch.load_model(self.model, path)
""",
        after="""\
import safetensors.torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import whole_states


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)

    def save(self, path):
        with whole_states(self.model):
            safetensors.torch.save_model(self.model, path)  # on every rank

    def load(self, path):
        with whole_states(self.model):
            return safetensors.torch.load_model(self.model, path)
""",
        support=("whole_states",),
    ),
    Example(
        title="a function of another library, in a context",
        before="""\
import loralib
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
    state = loralib.lora_state_dict(model)
""",
        after="""\
import loralib
from torch.distributed.fsdp import fully_shard

model = fully_shard(model)
state = loralib.lora_state_dict(model)
""",
    ),
    Example(
        title="a function of another library, after a setting",
        before="""\
import torch
from peft import get_peft_model_state_dict
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType


def train(net):
    model = FSDP(net)
    FSDP.set_state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)
    )
    torch.save({"adapter": get_peft_model_state_dict(model)}, "adapter.pt")
""",
        after="""\
import torch
from peft import get_peft_model_state_dict
from torch.distributed.fsdp import fully_shard

from fsdp2_support import whole_states


def train(net):
    model = fully_shard(net)
    with whole_states(model, cpu_offload=True):
        torch.save({"adapter": get_peft_model_state_dict(model)}, "adapter.pt")
""",
        support=("whole_states",),
    ),
    Example(
        title="a function of another library, for a module around sharded parts",
        before="""\
import safetensors.torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(path):
    net = nn.Sequential(FSDP(nn.Linear(4, 4)), nn.Linear(4, 1))
    safetensors.torch.save_model(net, path)
""",
        after="""\
import safetensors.torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp2_support import whole_states


def train(path):
    net = nn.Sequential(fully_shard(nn.Linear(4, 4)), nn.Linear(4, 1))
    with whole_states(net):
        safetensors.torch.save_model(net, path)
""",
        support=("whole_states",),
    ),
]

KEEP = [
    Keep(
        title="a function of another library, for a module around plain parts",
        source="""\
import safetensors.torch
from torch import nn


def train(path):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    safetensors.torch.save_model(net, path)
""",
    ),
    Keep(
        title="a function of another library that is given the state",
        source="""\
from peft import get_peft_model_state_dict

adapter = get_peft_model_state_dict(model, state_dict=state)
""",
    ),
    Keep(
        title="a function of another library, for a model that is not wrapped",
        source="""\
from peft import get_peft_model_state_dict

state = get_peft_model_state_dict(model)
""",
    ),
    Keep(
        title="a function of another library that rank 0 calls",
        source="""\
from peft import get_peft_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0:
    state = get_peft_model_state_dict(model)
""",
        left=True,
    ),
    Keep(
        title="a function of another library that is called later",
        source="""\
from peft import get_peft_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
take = lambda: get_peft_model_state_dict(model)
""",
        left=True,
    ),
    Keep(
        title="a model's state for a function of another library",
        source="""\
from safetensors.torch import save_file

save_file(model.state_dict(), "model.safetensors")
""",
    ),
    Keep(
        title="a tokenizer",
        source="""\
tokenizer.save_pretrained("out")
""",
    ),
    Keep(
        title="a model before wrapping",
        source="""\
model.save_pretrained("out")
""",
    ),
    Keep(
        title="rank 0 alone",
        source="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
if rank == 0:
    model.save_pretrained("out")
""",
        left=True,
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    if site.construct == STATE_FUNCTION:
        return _function(site, site.receiver, study)
    models = study.models(site.receiver, site.module).constructors
    call = site.node
    if isinstance(call, ast.Call) and any(k.arg == "state_dict" for k in call.keywords):
        return study.rewritten(site, RULE.code, "already given its state", models=models)
    problem = ""
    if not isinstance(call, ast.Call) or any(k.arg is None for k in call.keywords):
        problem = "the arguments of save_pretrained cannot be read"
    elif ranks.guard(call, site.module) is not None:
        problem = f"it stands under '{ranks.guard(call, site.module)}'"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "gather the state on every rank and pass it as state_dict=",
            models=models,
            quiet=True,
        )
    assert isinstance(call, ast.Call)
    proposal = study.proposal()
    get = proposal.name(site.module, DCP, "get_model_state_dict", call)
    options = proposal.name(site.module, DCP, "StateDictOptions", call)
    state = code(
        "{g}({m}, options={o}(full_state_dict=True))",
        g=get,
        m=ast.unparse(site.receiver),
        o=options,
    )
    proposal.add_keyword(site.module, call, "state_dict", state)
    return study.rewritten(site, RULE.code, "given the whole state", proposal, models=models)


HELP = "call it on every rank, in a statement of its own, and give it the whole state"


def _function(site: Site, model: ast.expr, study: Study) -> Decision:
    """A function of another library that asks the model by itself."""
    module = site.module
    parts = holders.held(model, module, study)
    models = parts.constructors or study.models(model, module).constructors
    setting = statedicts.at(site.node, module, models, study)
    at_run_time = statedicts.is_for_run_time(setting, study)
    at_run_time = at_run_time and statedicts.is_surely_set(site.node, module, models, study)
    if setting.problem and not at_run_time:
        return study.left(
            site, RULE.code, setting.problem, HELP, models=models, quiet=True, unknown_state=True
        )
    call = site.node
    assert isinstance(call, ast.Call)
    earlier = _before(site, study)
    others = [e for e in earlier if e.receiver and ast.unparse(e.receiver) != ast.unparse(model)]
    kept = ""
    if at_run_time:
        kept = "kept: the model is set to the state it gives"
    elif setting.kind != "FULL":
        kept = "kept: a model gives its shards"
    elif statedicts.is_in_context(call, module, models, study):
        kept = "kept: the context says which state it is"
    elif earlier and not others:
        kept = "in the context of the call before it"
    if kept:
        return study.rewritten(site, RULE.code, kept, models=models)
    found = hoisting.standing(site, (model,), study, fixed=True)
    new = _in_context(site)
    problem = found.problem
    if new is None or access_path(model) is None or others:
        problem = problem or "no statement can stand around it that asks for the whole state"
    if problem:
        return study.left(site, RULE.code, problem, HELP, models=models, quiet=True)
    assert new is not None
    proposal = study.proposal()
    flags = [", cpu_offload=True"] if setting.offload else []
    flags += [", rank0_only=True"] if setting.rank0_only else []
    head = code(
        "with {c}({m}{f}):",
        c=proposal.support(module, "whole_states", call),
        m=ast.unparse(model),
        f="".join(flags),
    )
    block = code("{h}\n    {s}{r}", h=head, s=new, r=_remark(site))
    proposal.replace_statement(module, site.statement, block)
    message = "whole_states around it"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=found.review)


def _before(site: Site, study: Study) -> list[Site]:
    """Other such calls in the statement, which come first."""
    return [
        other
        for other in holders.asking(study, site.module)
        if other.statement is site.statement and other.position < site.position
    ]


def _remark(site: Site) -> str:
    """The comment behind the statement, to stay there."""
    last = site.statement.end_lineno or site.statement.lineno
    found = site.module.source.comments(last, last)
    return f"  {found[0][2]}" if found else ""


def _in_context(site: Site) -> Code | None:
    """The statement of a call, to stand in a block; None if it cannot."""
    statement, table = site.statement, site.module.table
    for parent in table.ancestors(site.node):
        if parent is statement:
            break
        if isinstance(parent, (ast.Lambda, *COMPREHENSIONS)):
            return None
    match statement:
        case ast.Expr(value=value):
            return code("{v}", v=value)
        case ast.Return(value=ast.expr() as value):
            return code("return {v}", v=value)
        case ast.Assign(targets=[target], value=value):
            return code("{t} = {v}", t=target, v=value)
        case ast.AnnAssign(target=target, annotation=kind, value=ast.expr() as value):
            return code("{t}: {k} = {v}", t=target, k=kind, v=value)
    return None
