"""Mark tests of names that FSDP1 had put its own part into.

## What changes
Nothing in the code. A loop over `named_parameters()`, `named_buffers()` or `named_modules()` of a
sharded model is marked when it asks how a name begins, what it equals, or whether it is in a
collection, and when a function that it gives the name to does.

## Why
Outside of `summon_full_params`, FSDP1's names had `_fsdp_wrapped_module.` in front and before what
is in each unit: `name.startswith("head")` was never true, and no name was in a list of plain ones.
FSDP2 wraps nothing, so now such tests pick parameters: others are frozen, decayed or trained at
another rate than before. Most often that is what was meant all along.

## What stays for you
See what the test picks now, and whether it may. Loops in functions that take FSDP1's part off are
not marked, nor are tests of how names end, or of what they contain.

## Since torch
2.6

## References
- torch/distributed/fsdp/fully_sharded_data_parallel.py (`named_parameters`)
"""

from fsdp_migrate.families.names import prefixed_names
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP422",
    name="prefixed_names",
    handles=("prefixed name",),
    finders=(Finder(100, prefixed_names.find_prefixed_names),),
)

EXAMPLES = [
    Example(
        title="parameters picked by how their names begin",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def setup(model):
    model = FSDP(model, use_orig_params=True)
    head = [p for n, p in model.named_parameters() if n.startswith("head.")]
    rest = [p for n, p in model.named_parameters() if not n.startswith("head.")]
    return torch.optim.AdamW([{"params": head, "lr": 1e-3}, {"params": rest}], lr=1e-4)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard

def setup(model):
    model = fully_shard(model)
    # TODO(fsdp-migrate FSDP422): FSDP1's names had _fsdp_wrapped_module. in them here, so that this may have matched nothing; now it goes by the plain names.
    head = [p for n, p in model.named_parameters() if n.startswith("head.")]
    # TODO(fsdp-migrate FSDP422): FSDP1's names had _fsdp_wrapped_module. in them here, so that this may have matched nothing; now it goes by the plain names.
    rest = [p for n, p in model.named_parameters() if not n.startswith("head.")]
    return torch.optim.AdamW([{"params": head, "lr": 1e-3}, {"params": rest}], lr=1e-4)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="names in a collection",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

SKIP = {"cls_token", "pos_embed"}

def groups(model):
    decay, no_decay = [], []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (no_decay if name in SKIP or name.endswith(".bias") else decay).append(parameter)
    return decay, no_decay

def setup(model):
    model = FSDP(model, use_orig_params=True)
    return groups(model)
""",
        after="""\
from torch.distributed.fsdp import fully_shard

SKIP = {"cls_token", "pos_embed"}

def groups(model):
    decay, no_decay = [], []
    # TODO(fsdp-migrate FSDP422): FSDP1's names had _fsdp_wrapped_module. in them here, so that this may have matched nothing; now it goes by the plain names.
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (no_decay if name in SKIP or name.endswith(".bias") else decay).append(parameter)
    return decay, no_decay

def setup(model):
    model = fully_shard(model)
    return groups(model)
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="modules by the first part of their names",
        before="""\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def setup(model):
    model = FSDP(model)
    for name, module in model.named_modules():
        if name.split(".")[0] == "backbone" and isinstance(module, nn.Dropout):
            module.p = 0.0
    return model
""",
        after="""\
from torch import nn
from torch.distributed.fsdp import fully_shard

def setup(model):
    model = fully_shard(model)
    # TODO(fsdp-migrate FSDP422): FSDP1's names had _fsdp_wrapped_module. in them here, so that this may have matched nothing; now it goes by the plain names.
    for name, module in model.named_modules():
        if name.split(".")[0] == "backbone" and isinstance(module, nn.Dropout):
            module.p = 0.0
    return model
""",
        outcome=Outcome.REVIEW,
    ),
    Example(
        title="a function that is given the names, of parameters in a list",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def layer_of(name):
    parts = name.split(".")
    return int(parts[1]) + 1 if parts[0] == "layers" else 0

def setup(model):
    model = FSDP(model, use_orig_params=True)
    named = list(model.named_parameters())
    return [{"params": [p], "lr": 1e-4 * 0.8 ** layer_of(n)} for n, p in named]
""",
        after="""\
from torch.distributed.fsdp import fully_shard

def layer_of(name):
    parts = name.split(".")
    return int(parts[1]) + 1 if parts[0] == "layers" else 0

def setup(model):
    model = fully_shard(model)
    named = list(model.named_parameters())
    # TODO(fsdp-migrate FSDP422): FSDP1's names had _fsdp_wrapped_module. in them here, so that this may have matched nothing; now it goes by the plain names.
    return [{"params": [p], "lr": 1e-4 * 0.8 ** layer_of(n)} for n, p in named]
""",
        outcome=Outcome.REVIEW,
    ),
]

KEEP = [
    Keep(
        title="a function that is given the names of a plain model",
        source="""\
def layer_of(name):
    return int(name.split(".")[1]) if name.startswith("layers.") else 0

rates = {n: 0.8 ** layer_of(n) for n, p in model.named_parameters()}
""",
    ),
    Keep(
        title="a collection of names of a plain model",
        source="""\
def groups(model):
    return [p for n, p in model.named_parameters() if n not in SKIP]
""",
    ),
    Keep(
        title="names of a plain model",
        source="""\
frozen = [p for n, p in model.named_parameters() if n.startswith("embed")]
""",
    ),
    Keep(
        title="names of a DDP model",
        source="""\
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(model)
for name, parameter in model.named_parameters():
    parameter.requires_grad_(name.startswith("module.head"))
""",
    ),
]

REVIEW = (
    "FSDP1's names had _fsdp_wrapped_module. in them here, so that this may have matched nothing; "
    "now it goes by the plain names"
)


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    return study.rewritten(
        site,
        RULE.code,
        "kept, with other names",
        models=study.models(site.receiver, site.module).constructors,
        review=REVIEW,
    )
