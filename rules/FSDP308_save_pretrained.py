"""Hand `save_pretrained` the whole state.

## What changes
`model.save_pretrained(directory)` gets `state_dict=get_model_state_dict(model, ...)` with the whole
model.

## Why
The method asks the model for its state by itself. FSDP1 answered with the whole model; FSDP2
answers with this rank's shards, and those would be written without an error.

## What stays for you
As with FSDP1, every rank must call it. Calls that already pass a `state_dict` are left alone.

## Since torch
2.6

## References
- https://huggingface.co/docs/transformers/main_classes/model (`save_pretrained`)
"""

import ast

from fsdp_migrate.construct.sharding import DCP
from fsdp_migrate.proposal import code
from fsdp_migrate.rule import Example, Keep, Rule
from fsdp_migrate.sites import Site
from fsdp_migrate.states import ranks
from fsdp_migrate.study import Decision, Study

RULE = Rule(
    code="FSDP308",
    name="save_pretrained",
    handles=("FullyShardedDataParallel.save_pretrained",),
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
]

KEEP = [
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
