"""Whose weights a model starts with when every rank has drawn its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.programs import Launcher, written

pytestmark = pytest.mark.train

MODELS = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.BatchNorm1d(dim)
        self.register_buffer("table", torch.randn(dim), persistent=False)
        self.register_buffer("seed", torch.randint(1000, ()))


class Net(nn.Module):
    def __init__(self, dim=5):
        super().__init__()
        self.embed = nn.Embedding(7, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(2))
        self.offset = nn.Parameter(torch.randn(3))
        self.register_buffer("mask", torch.rand(dim) > 0.5)
        self.head = nn.Linear(dim, 7, bias=False)
        self.head.weight = self.embed.weight
"""

HEAD = """\
import gc

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

from models import Block, Net

CPU = torch.device("cpu")


"""

SYNCED = {
    "one unit": """\
def build():
    return FSDP(Net(), device_id=CPU, sync_module_states=True)
""",
    "a policy": """\
def build():
    model = Net()
    policy = ModuleWrapPolicy({Block})
    model = FSDP(model, auto_wrap_policy=policy, device_id=CPU, sync_module_states=True)
    return model
""",
    "a policy that counts": """\
def build():
    return FSDP(
        Net(), auto_wrap_policy=size_based_auto_wrap_policy, device_id=CPU, sync_module_states=True
    )
""",
    "a setting": """\
SYNC = True


def shard(model, sync):
    return FSDP(model, device_id=CPU, sync_module_states=sync, use_orig_params=True)


def build():
    return shard(Net(), SYNC)
""",
    "replicas": """\
def build():
    model = Net()
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    return FSDP(
        model,
        device_mesh=mesh,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=CPU,
        sync_module_states=True,
    )
""",
    "units one by one": """\
def build():
    model = Net()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = FSDP(block, device_id=CPU, sync_module_states=True)
    return FSDP(model, device_id=CPU, sync_module_states=True)
""",
    "keyword arguments from elsewhere": """\
def settings():
    return dict(device_id=CPU, sync_module_states=True, auto_wrap_policy=ModuleWrapPolicy({Block}))


def build():
    return FSDP(Net(), **settings())
""",
    "annotated units": """\
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build():
    with enable_wrap(wrapper_cls=FSDP, device_id=CPU, sync_module_states=True):
        model = Net()
        for i, block in enumerate(model.blocks):
            block.linear = wrap(block.linear)
            model.blocks[i] = wrap(block)
        return wrap(model)
""",
    "half precision": """\
def build():
    model = Net().to(torch.bfloat16)
    model = FSDP(model, device_id=CPU, sync_module_states=True, use_orig_params=True)
    return model
""",
}
FROM_RANK_0 = {
    "annotated units, others on the meta device": """\
from torch.distributed.fsdp.wrap import enable_wrap, wrap


def build():
    if torch.distributed.get_rank() == 0:
        model = Net()
    else:
        with torch.device("meta"):
            model = Net()
    # FSDP1 cannot keep weights tied on the meta device.
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    with enable_wrap(
        wrapper_cls=FSDP,
        param_init_fn=lambda module: module.to_empty(device=CPU, recurse=False),
        device_id=CPU,
        sync_module_states=True,
    ):
        model.blocks[0].linear = wrap(model.blocks[0].linear)
        model.blocks[0] = wrap(model.blocks[0])
        return wrap(model)
""",
    "others on the meta device": """\
def build():
    if torch.distributed.get_rank() == 0:
        model = Net()
    else:
        with torch.device("meta"):
            model = Net()
    # FSDP1 cannot keep weights tied on the meta device.
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    return FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        param_init_fn=lambda module: module.to_empty(device=CPU, recurse=False),
        device_id=CPU,
        sync_module_states=True,
    )
""",
    "a function of several statements": """\
def init_fn(x: nn.Module):
    if torch.distributed.get_rank() != 0:
        x = x.to_empty(device=CPU, recurse=False)
        gc.collect()
    return x


def build():
    if torch.distributed.get_rank() == 0:
        model = Net()
    else:
        with torch.device("meta"):
            model = Net()
    # FSDP1 cannot keep weights tied on the meta device.
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        param_init_fn=init_fn,
        device_id=CPU,
        sync_module_states=True,
    )
    return model
""",
}
OWN = {
    "nothing said": """\
def build():
    return FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU)
""",
    "not asked for": """\
def build():
    return FSDP(Net(), device_id=CPU, sync_module_states=False)
""",
}

IGNORED = {
    "perhaps elsewhere": """\
import os


def build():
    model = Net()
    device = os.environ.get("DEVICE", "cpu")
    return FSDP(
        model,
        device_id=torch.device(device),
        ignored_modules=[model.blocks[1]],
        sync_module_states=True,
    )
""",
    "a module": """\
def build():
    model = Net()
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=CPU,
        ignored_modules=[model.blocks[1]],
        sync_module_states=True,
    )
    return model
""",
    "keyword arguments from elsewhere": """\
def settings(model, **more):
    return {"device_id": CPU, "sync_module_states": True, **more}


def build():
    model = Net()
    return FSDP(model, **settings(model, ignored_modules=[model.blocks[1]]))
""",
    "parameters": """\
def build():
    model = Net()
    skipped = list(model.blocks[1].parameters())
    return FSDP(model, ignored_states=skipped, device_id=CPU, sync_module_states=True)
""",
}
IGNORED_PARAMETERS = [
    f"blocks.1.{name}" for name in ("linear.weight", "linear.bias", "norm.weight", "norm.bias")
]

SLICES = {
    "a slice": """\
def build():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("part", "shard"))
    model = Net()
    model = FSDP(
        model,
        device_mesh=mesh["shard"],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=CPU,
        sync_module_states=True,
    )
    return model
""",
    "a slice by another name": """\
def part():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("part", "shard"))["shard"]


def build():
    return FSDP(Net(), device_mesh=part(), device_id=CPU, sync_module_states=True)
""",
    "a group": """\
def build():
    rank = torch.distributed.get_rank()
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    return FSDP(Net(), process_group=groups[rank // 2], device_id=CPU, sync_module_states=True)
""",
    "a group, others on the meta device": """\
def build():
    rank = torch.distributed.get_rank()
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    with torch.device("meta" if rank % 2 else "cpu"):
        model = Net()
    # FSDP1 cannot keep weights tied on the meta device.
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    if rank % 2:
        init_fn = lambda module: module.to_empty(device=CPU, recurse=False)
    else:
        init_fn = None
    return FSDP(
        model,
        process_group=groups[rank // 2],
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        param_init_fn=init_fn,
        device_id=CPU,
        sync_module_states=True,
    )
""",
    "a group, with a part that is sharded before": """def build():
    rank = torch.distributed.get_rank()
    groups = [torch.distributed.new_group([0, 1]), torch.distributed.new_group([2, 3])]
    group = groups[rank // 2]
    model = Net()
    for i, block in enumerate(model.blocks):
        model.blocks[i] = FSDP(
            block, process_group=group, device_id=CPU, sync_module_states=True
        )
    return FSDP(model, process_group=group, device_id=CPU, sync_module_states=True)
""",
    "a slice, others on the meta device": """def build():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("part", "shard"))
    if mesh["shard"].get_local_rank() == 0:
        model = Net()
    else:
        with torch.device("meta"):
            model = Net()
    # FSDP1 cannot keep weights tied on the meta device.
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
    return FSDP(
        model,
        device_mesh=mesh["shard"],
        param_init_fn=lambda module: module.to_empty(device=CPU, recurse=False),
        device_id=CPU,
        sync_module_states=True,
    )
""",
}

State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def built(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[dict[str, State]]]]:
    """For both versions: what each rank holds of each model right after construction."""
    ignored = {f"ignored, {name}": source for name, source in IGNORED.items()}
    sources = SYNCED | FROM_RANK_0 | OWN | ignored
    return held(sources, 2, launcher, tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def built_by_four(
    launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[list[dict[str, State]]]]:
    """As ``built``, of models that two ranks of four shard between them."""
    return held(SLICES, 4, launcher, tmp_path_factory.mktemp("slices"))


def held(sources: dict[str, str], ranks: int, launcher: Launcher, scratch: Path) -> dict[str, Any]:
    for name, source in sources.items():
        files = {"snippet.py": (HEAD + source).encode(), "models.py": MODELS.encode()}
        both = written(files, scratch / "work" / name, entry="snippet.py")
        for version in ("before", "after"):
            (scratch / version).mkdir(exist_ok=True)
            (both.before.parent.parent / version).rename(scratch / version / name)
    result: dict[str, Any] = {}
    for version, fsdp1 in (("before", "allow"), ("after", "forbid")):
        out = scratch / f"{version}.pt"
        launcher.function(
            "tests.training.groups",
            "hold_all",
            str(scratch / version),
            str(out),
            fsdp1=fsdp1,
            ranks=ranks,
        )
        result[version] = [torch.load(f"{out}.{rank}") for rank in range(ranks)]
    return result


def drawn(rank: int) -> State:
    """Everything a rank drew before sharding."""
    namespace: dict[str, Any] = {}
    exec(MODELS, namespace)
    torch.manual_seed(10 * rank)
    model = namespace["Net"]()
    return dict(model.named_parameters()) | dict(model.named_buffers())


@pytest.mark.parametrize("name", SYNCED | FROM_RANK_0)
def test_synchronised_models_are_rank_0s(name: str, built: dict[str, Any]) -> None:
    for version in ("before", "after"):
        for held in built[version]:
            assert "error" not in held[name], held[name]["error"]
            for kind, expected in drawn(0).items():
                found = held[name]["state"][kind]
                assert torch.equal(found, expected.to(found.dtype)), f"{version}: {kind}"
    units = {version: built[version][0][name]["units"] for version in built}
    assert units["after"] == units["before"]


@pytest.mark.parametrize("name", SLICES)
def test_slices_are_their_own_first_ranks(name: str, built_by_four: dict[str, Any]) -> None:
    for version in ("before", "after"):
        for rank, held in enumerate(built_by_four[version]):
            assert "error" not in held[name], held[name]["error"]
            for kind, expected in drawn(rank // 2 * 2).items():
                found = held[name]["state"][kind]
                assert torch.equal(found, expected.to(found.dtype)), f"{version} {rank}: {kind}"
    units = {version: built_by_four[version][0][name]["units"] for version in built_by_four}
    assert units["after"] == units["before"]


@pytest.mark.parametrize("name", IGNORED)
def test_ignored_parameters_are_every_ranks_own(name: str, built: dict[str, Any]) -> None:
    for version in ("before", "after"):
        for rank, every in enumerate(built[version]):
            held = every[f"ignored, {name}"]
            assert "error" not in held, held["error"]
            own = {kind: drawn(rank)[kind] for kind in IGNORED_PARAMETERS}
            for kind, expected in (drawn(0) | own).items():
                found = held["state"][kind]
                assert torch.equal(found, expected.to(found.dtype)), f"{version} {rank}: {kind}"


@pytest.mark.parametrize("name", OWN)
def test_other_models_are_what_every_rank_drew(name: str, built: dict[str, Any]) -> None:
    for version in ("before", "after"):
        mixed = built[version][0][name]["state"]["blocks.0.linear.weight"].flatten()
        both = [drawn(rank)["blocks.0.linear.weight"].flatten() for rank in range(2)]
        assert set(mixed.tolist()) <= {value for own in both for value in own.tolist()}
        assert not any(torch.equal(mixed, own) for own in both)
        for rank, held in enumerate(built[version]):
            for buffer in ("blocks.0.table", "blocks.1.seed", "mask"):
                assert torch.equal(held[name]["state"][buffer], drawn(rank)[buffer])
