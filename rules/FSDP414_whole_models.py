"""Copy models before they are sharded, and save states instead of models.

## What changes
Nothing by itself: `copy.deepcopy(model)`, `AveragedModel(model)`, `torch.save(model, path)` and
`pickle.dump(model, file)` on a sharded model are left, with a marker.

## Why
`fully_shard` forbids copies of a model (`FSDP does not support deepcopy`), and its class is made
at run time, so that pickle does not find it. FSDP1 could be copied until its first forward.

## What stays for you
Make the copy of the plain model and call the sharding for both. The average is then taken shard by
shard, without communication. Save a state dict, and build the model anew before it is loaded.

## Since torch
2.6

## References
- torch/distributed/fsdp/_fully_shard/_fully_shard.py (`_unimplemented_deepcopy`)
"""

from fsdp_migrate.families.checkpoints import copies
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Finder, Keep, Rule

RULE = Rule(
    code="FSDP414",
    name="whole_models",
    handles=("copy of a model", "pickled model"),
    finders=(Finder(180, copies.find_copied_models),),
)

EXAMPLES = [
    Example(
        title="a copy for a moving average",
        before="""\
import copy

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    model = FSDP(net, use_orig_params=True)
    ema = copy.deepcopy(model)
    return model, ema
""",
        after="""\
import copy

from torch.distributed.fsdp import fully_shard


def build(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP414): A sharded model cannot be copied. Copy the model before it is sharded, and shard both alike.
    ema = copy.deepcopy(model)
    return model, ema
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="torch's averaged model",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
""",
        after="""\
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


class Trainer:
    def __init__(self, net):
        self.model = fully_shard(net)
        # TODO(fsdp-migrate FSDP414): A sharded model cannot be copied. Copy the model before it is sharded, and shard both alike.
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
""",
        outcome=Outcome.LEFT,
    ),
    Example(
        title="a model in a file",
        before="""\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, path):
    model = FSDP(net)
    torch.save({"model": model, "step": 100}, path)
""",
        after="""\
import torch
from torch.distributed.fsdp import fully_shard


def train(net, path):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP414): A sharded model cannot be pickled. Save its state with get_model_state_dict, and build the model before loading it.
    torch.save({"model": model, "step": 100}, path)
""",
        outcome=Outcome.LEFT,
    ),
]

KEEP = [
    Keep(
        title="a copy of a plain model",
        source="""\
import copy

ema = copy.deepcopy(model).requires_grad_(False)
""",
    ),
    Keep(
        title="a plain model in a file",
        source="""\
import torch

torch.save(model, "model.pt")
""",
    ),
    Keep(
        title="a copy of a configuration",
        source="""\
import copy

from torch.distributed.fsdp import fully_shard

fully_shard(model)
config = copy.deepcopy(model.config)
""",
    ),
    Keep(
        title="an averaged model before sharding",
        source="""\
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel

average = AveragedModel(model)
fully_shard(model)
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    assert site.receiver is not None
    models = study.models(site.receiver, site.module).constructors
    if site.construct == copies.COPY:
        return study.left(
            site,
            RULE.code,
            "a sharded model cannot be copied",
            "copy the model before it is sharded, and shard both alike",
            models=models,
        )
    return study.left(
        site,
        RULE.code,
        "a sharded model cannot be pickled",
        "save its state with get_model_state_dict, and build the model before loading it",
        models=models,
    )
