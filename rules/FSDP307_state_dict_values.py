"""Drop state dict types and configurations whose calls were migrated.

## What changes
`StateDictType`, `FullStateDictConfig` and their siblings disappear with the contexts they served; a
module-level configuration object that nothing uses any more is deleted.

## Why
Their meaning moved into `StateDictOptions` at each call.

## What stays for you
Values that are kept in configurations or compared at run time.

## Since torch
2.6

## References
- torch/distributed/fsdp/api.py
"""

import ast

from fsdp_migrate.families.checkpoints import statedicts
from fsdp_migrate.families.names.deletions import drop_assignment
from fsdp_migrate.families.wrapping import vocabulary
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision, Site
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import Example, Keep, Rule

RULE = Rule(
    code="FSDP307",
    name="state_dict_values",
    handles=(
        "StateDictType",
        "StateDictConfig",
        "FullStateDictConfig",
        "LocalStateDictConfig",
        "ShardedStateDictConfig",
        "OptimStateDictConfig",
        "FullOptimStateDictConfig",
        "LocalOptimStateDictConfig",
        "ShardedOptimStateDictConfig",
        "StateDictSettings",
        "annotation(StateDictType)",
        "annotation(StateDictConfig)",
        "annotation(FullStateDictConfig)",
        "annotation(LocalStateDictConfig)",
        "annotation(ShardedStateDictConfig)",
        "annotation(OptimStateDictConfig)",
        "annotation(FullOptimStateDictConfig)",
        "annotation(LocalOptimStateDictConfig)",
        "annotation(ShardedOptimStateDictConfig)",
        "annotation(StateDictSettings)",
        "isinstance(StateDictType)",
        "isinstance(StateDictConfig)",
        "isinstance(FullStateDictConfig)",
        "isinstance(LocalStateDictConfig)",
        "isinstance(ShardedStateDictConfig)",
        "isinstance(OptimStateDictConfig)",
        "isinstance(FullOptimStateDictConfig)",
        "isinstance(LocalOptimStateDictConfig)",
        "isinstance(ShardedOptimStateDictConfig)",
        "isinstance(StateDictSettings)",
    ),
    since="2.4",
)

EXAMPLES = [
    Example(
        title="a configuration object that everything used",
        before="""\
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)

full = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)


def save(model):
    model = FSDP(model)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, full):
        return model.state_dict()
""",
        after="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(model):
    model = fully_shard(model)
    return get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
""",
    ),
    Example(
        title="a configuration object that is deleted after its use",
        before="""\
import torch
from torch.distributed.fsdp import (
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


def save(net, path):
    model = FSDP(net)
    full = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, full):
        state = model.state_dict()
    del full
    torch.save(state, path)
""",
        after="""\
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard


def save(net, path):
    model = fully_shard(net)
    state = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    torch.save(state, path)
""",
    ),
    Example(
        title="a type that a configuration keeps",
        before="""\
from dataclasses import dataclass

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)


@dataclass
class Config:
    checkpoint_type: StateDictType = StateDictType.SHARDED_STATE_DICT
""",
        after="""\
from dataclasses import dataclass

from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType

model = fully_shard(model)


@dataclass
class Config:
    checkpoint_type: StateDictType = StateDictType.SHARDED_STATE_DICT
""",
        support=("StateDictType",),
    ),
    Example(
        title="a type that is compared",
        before="""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

model = FSDP(model)
if config.checkpoint_type == StateDictType.FULL_STATE_DICT:
    print("one file")
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import StateDictType

model = fully_shard(model)
if config.checkpoint_type == StateDictType.FULL_STATE_DICT:
    print("one file")
""",
        support=("StateDictType",),
    ),
    Example(
        title="configurations of the program's own",
        before="""\
from dataclasses import dataclass, field

import torch
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    StateDictType,
)


@dataclass
class Config:
    kind: StateDictType = StateDictType.FULL_STATE_DICT
    model: FullStateDictConfig = field(default_factory=FullStateDictConfig)
    optimizer: FullOptimStateDictConfig = field(default_factory=FullOptimStateDictConfig)


def save(net, optimizer, config: Config, path):
    model = FSDP(net)
    with FSDP.state_dict_type(model, config.kind, config.model, config.optimizer):
        states = {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}
    torch.save(states, path)


def load(net, optimizer, config: Config, path):
    model = FSDP(net)
    states = torch.load(path)
    with FSDP.state_dict_type(model, config.kind, config.model, config.optimizer):
        model.load_state_dict(states["model"])
        state = FSDP.optim_state_dict_to_load(model, optimizer, states["optimizer"])
    optimizer.load_state_dict(state)
""",
        after="""\
from dataclasses import dataclass, field

import torch
from torch.distributed.fsdp import fully_shard

from fsdp2_support import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    StateDictType,
    optim_state_dict,
    optim_state_dict_to_load,
    state_dict_type,
)


@dataclass
class Config:
    kind: StateDictType = StateDictType.FULL_STATE_DICT
    model: FullStateDictConfig = field(default_factory=FullStateDictConfig)
    optimizer: FullOptimStateDictConfig = field(default_factory=FullOptimStateDictConfig)


def save(net, optimizer, config: Config, path):
    model = fully_shard(net)
    with state_dict_type(model, config.kind, config.model, config.optimizer):
        states = {"model": model.state_dict(), "optimizer": optim_state_dict(model, optimizer)}
    torch.save(states, path)


def load(net, optimizer, config: Config, path):
    model = fully_shard(net)
    states = torch.load(path)
    with state_dict_type(model, config.kind, config.model, config.optimizer):
        model.load_state_dict(states["model"])
        state = optim_state_dict_to_load(model, optimizer, states["optimizer"])
    optimizer.load_state_dict(state)
""",
        support=(
            "FullOptimStateDictConfig",
            "FullStateDictConfig",
            "StateDictType",
            "optim_state_dict",
            "optim_state_dict_to_load",
            "state_dict_type",
        ),
    ),
    Example(
        title="every kind by name",
        before="""\
from torch.distributed.fsdp import (
    FullyShardedDataParallel as FSDP,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
)

CONFIGS = {
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


def prepare(net, kind: StateDictType) -> tuple[StateDictConfig, OptimStateDictConfig]:
    model = FSDP(net)
    configs = [make(offload_to_cpu=True) for make in CONFIGS[kind]]
    before: StateDictSettings = FSDP.set_state_dict_type(model, kind, *configs)
    return configs
""",
        after="""\
from torch.distributed.fsdp import fully_shard

from fsdp2_support import (
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    OptimStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictConfig,
    StateDictSettings,
    StateDictType,
    set_state_dict_type,
)

CONFIGS = {
    StateDictType.LOCAL_STATE_DICT: (LocalStateDictConfig, LocalOptimStateDictConfig),
    StateDictType.SHARDED_STATE_DICT: (ShardedStateDictConfig, ShardedOptimStateDictConfig),
}


def prepare(net, kind: StateDictType) -> tuple[StateDictConfig, OptimStateDictConfig]:
    model = fully_shard(net)
    configs = [make(offload_to_cpu=True) for make in CONFIGS[kind]]
    before: StateDictSettings = set_state_dict_type(model, kind, *configs)
    return configs
""",
        support=(
            "LocalOptimStateDictConfig",
            "LocalStateDictConfig",
            "OptimStateDictConfig",
            "ShardedOptimStateDictConfig",
            "ShardedStateDictConfig",
            "StateDictConfig",
            "StateDictSettings",
            "StateDictType",
            "set_state_dict_type",
        ),
    ),
]

KEEP = [
    Keep(
        title="another library's configuration that is deleted",
        source="""\
from composer.trainer import FullStateDictConfig

config = FullStateDictConfig(rank0_only=True)
save(model, config)
del config
""",
    ),
    Keep(
        title="a type given to another framework",
        source="""\
from accelerate import FullyShardedDataParallelPlugin
from torch.distributed.fsdp import StateDictType

plugin = FullyShardedDataParallelPlugin(state_dict_type=StateDictType.FULL_STATE_DICT)
""",
        left=True,
    ),
    Keep(
        title="a configuration object that leaves the module",
        source="""\
from torch.distributed.fsdp import FullStateDictConfig


def config():
    return FullStateDictConfig(offload_to_cpu=True)
""",
        left=True,
    ),
    Keep(
        title="DCP's options",
        source="""\
from torch.distributed.checkpoint.state_dict import StateDictOptions

options = StateDictOptions(full_state_dict=True)
""",
    ),
    Keep(
        title="a configuration of the project's own",
        source="""\
class FullStateDictConfig:
    rank0_only = True


config = FullStateDictConfig()
""",
    ),
    Keep(
        title="another library's configurations",
        source="""\
from composer.trainer import StateDictType

kind = StateDictType.SHARDED
""",
    ),
]


def decide(site: Site, study: Study) -> Decision:
    uses = statedicts.config_users(site)
    if uses and not any(_is_kept(use, site, study) for use in uses):
        owners = [_owner(use, site, study) for use in uses]
        settled = [o for o in owners if o is not None]
        if len(settled) == len(owners):
            proposal = study.proposal()
            drop_assignment(site.statement, site.module, study, proposal)
            models = frozenset[object]().union(*(o.models for o in settled))
            return study.rewritten(
                site,
                RULE.code,
                "its settings moved into StateDictOptions",
                proposal,
                models=models,  # type: ignore[arg-type]
            )
    name = vocabulary.name_of(site.construct)
    if name == "StateDictType" or study.run_time_states or study.kept:
        return vocabulary.keep(site, name, study, RULE.code)
    return study.left(
        site,
        RULE.code,
        study.derived or f"{site.construct} is used as a value",
        "replace it together with the code that reads it",
        models=study.constructors.values(),
        unknown_state=True,
    )


def _is_kept(use: ast.Name, site: Site, study: Study) -> bool:
    return not study.kept.isdisjoint(site.module.table.ancestors(use))


def _owner(use: ast.Name, site: Site, study: Study) -> Decision | None:
    """The migrated call whose argument ``use`` is."""
    for parent in site.module.table.ancestors(use):
        settled = study.settled.get(parent)
        if settled is not None and settled.outcome is not Outcome.LEFT:
            return settled
        if isinstance(parent, ast.stmt):
            return None
    return None
