"""FSDP1's constructor against ``shard`` with the same arguments: the same model trains the same.

Every case is a function that gives the arguments for a model; it runs on all ranks, once for the
constructor and once for ``shard``, each on a model of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    _or_policy,
    always_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from fsdp_migrate.planning import support_library
from fsdp_migrate.runtime import fsdp2_support as support
from tests.training import fsdp1
from tests.training.observe import snapshot

Arguments = dict[str, Any]
CASES: dict[str, Callable[[nn.Module], Arguments]] = {}
RANKS: dict[str, int] = {}
CPU = torch.device("cpu")


class Part(nn.Module):
    """A unit with units inside it, and arithmetic that shows in which dtype it is given things."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)
        self.register_buffer("table", torch.linspace(0.1, 1.3, dim), persistent=False)

    def reset_parameters(self) -> None:
        self.table = torch.linspace(0.1, 1.3, self.table.numel(), device=self.table.device)

    def forward(self, x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x))) * (self.table * side).to(x.dtype)


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = Part(dim)
        self.norm = nn.BatchNorm1d(dim)
        self.second = Part(dim)

    def forward(self, x: torch.Tensor, side: torch.Tensor) -> torch.Tensor:
        return self.second(self.norm(self.first(x, side).to(x.dtype)), side)


class Net(nn.Module):
    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.input = nn.Linear(5, dim)
        self.blocks = nn.ModuleList([Block(dim), Block(dim)])
        self.last = Part(dim)
        self.head = nn.Linear(dim, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = torch.full((1,), 1.0001)
        x = self.input(x)
        for block in self.blocks:
            x = block(x, side)
        return self.head(self.last(x, side).to(self.head.weight.dtype))


def case(
    function: Callable[[nn.Module], Arguments] | None = None, *, ranks: int = 2
) -> Callable[[nn.Module], Arguments]:
    if function is None:
        return functools.partial(case, ranks=ranks)  # type: ignore[return-value]
    CASES[function.__name__] = function
    RANKS[function.__name__] = ranks
    return function


@case
def nothing(model: nn.Module) -> Arguments:
    return {}


@case
def classes(model: nn.Module) -> Arguments:
    return {"auto_wrap_policy": ModuleWrapPolicy({Block, Part})}


@case
def transformer_policy(model: nn.Module) -> Arguments:
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return {"auto_wrap_policy": policy, "backward_prefetch": BackwardPrefetch.BACKWARD_POST}


@case
def by_size(model: nn.Module) -> Arguments:
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=100)
    return {"auto_wrap_policy": policy, "forward_prefetch": True}


@case
def by_size_in_bf16(model: nn.Module) -> Arguments:
    policy = functools.partial(size_based_auto_wrap_policy, min_num_params=150)
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return {"auto_wrap_policy": policy, "mixed_precision": precision}


@case
def any_of_two(model: nn.Module) -> Arguments:
    one = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: isinstance(m, Part))
    two = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    return {"auto_wrap_policy": functools.partial(_or_policy, policies=[one, two])}


@case
def every_module(model: nn.Module) -> Arguments:
    return {"auto_wrap_policy": always_wrap_policy}


@case
def custom_with_settings(model: nn.Module) -> Arguments:
    low = MixedPrecision(param_dtype=torch.bfloat16, cast_forward_inputs=True)

    def pick(module: nn.Module) -> bool | Arguments:
        if isinstance(module, Part):
            return {"mixed_precision": low, "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
        return isinstance(module, Block)

    return {"auto_wrap_policy": CustomPolicy(pick)}


@case
def a_function_of_ones_own(model: nn.Module) -> Arguments:
    def policy(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
        return recurse or nonwrapped_numel > 70

    return {"auto_wrap_policy": policy}


def bf16(**more: Any) -> MixedPrecision:
    settings = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
    return MixedPrecision(**{**settings, **more})


@case
def bf16_alone(model: nn.Module) -> Arguments:
    for block in model.blocks:
        block.norm = nn.LayerNorm(6)
    return {"mixed_precision": bf16()}


@case
def bf16_with_units(model: nn.Module) -> Arguments:
    return {"mixed_precision": bf16(), "auto_wrap_policy": ModuleWrapPolicy({Block})}


@case
def bf16_that_casts_all_inputs(model: nn.Module) -> Arguments:
    precision = bf16(cast_forward_inputs=True, reduce_dtype=None)
    return {"mixed_precision": precision, "auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def bf16_buffers(model: nn.Module) -> Arguments:
    precision = bf16(buffer_dtype=torch.bfloat16)
    return {"mixed_precision": precision, "auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def gradients_and_optimizer_state_only(model: nn.Module) -> Arguments:
    strategy = ShardingStrategy.SHARD_GRAD_OP
    return {"sharding_strategy": strategy, "auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def not_sharded(model: nn.Module) -> Arguments:
    strategy = ShardingStrategy.NO_SHARD
    return {"sharding_strategy": strategy, "auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def offloaded(model: nn.Module) -> Arguments:
    return {"cpu_offload": CPUOffload(offload_params=False), "limit_all_gathers": False}


@case
def ignored_modules(model: nn.Module) -> Arguments:
    model.head.requires_grad_(False)
    model.last.requires_grad_(False)
    policy = ModuleWrapPolicy({Part})
    return {"ignored_modules": [model.head, model.last], "auto_wrap_policy": policy}


@case
def ignored_parameters(model: nn.Module) -> Arguments:
    model.head.requires_grad_(False)
    return {"ignored_states": [model.head.weight], "auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def weights_of_rank_0(model: nn.Module) -> Arguments:
    torch.manual_seed(100 + dist.get_rank())
    for tensor in (*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())):
        nn.init.uniform_(tensor, 0.01, 0.2)
    return {"sync_module_states": True, "auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def only_rank_0_has_weights(model: nn.Module) -> Arguments:
    if dist.get_rank() != 0:
        model.to("meta")
    return {
        "sync_module_states": True,
        "param_init_fn": lambda module: module.to_empty(device=CPU, recurse=False),
        "auto_wrap_policy": ModuleWrapPolicy({Part}),
    }


@case
def made_from_nothing(model: nn.Module) -> Arguments:
    model.to("meta")
    torch.manual_seed(7)
    return {"auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def over_the_world_group(model: nn.Module) -> Arguments:
    group = dist.new_group([0, 1])
    return {"process_group": group, "auto_wrap_policy": ModuleWrapPolicy({Part})}


@case
def over_a_mesh(model: nn.Module) -> Arguments:
    return {"device_mesh": init_device_mesh("cpu", (2,))}


@case(ranks=4)
def hybrid_over_an_unnamed_mesh(model: nn.Module) -> Arguments:
    return {
        "sharding_strategy": ShardingStrategy.HYBRID_SHARD,
        "device_mesh": init_device_mesh("cpu", (2, 2)),
        "auto_wrap_policy": ModuleWrapPolicy({Part}),
    }


@case(ranks=4)
def hybrid_over_two_groups(model: nn.Module) -> Arguments:
    rank = dist.get_rank()
    pairs = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
    sharding, replicating = pairs[rank // 2], pairs[2 + rank % 2]
    return {
        "sharding_strategy": ShardingStrategy._HYBRID_SHARD_ZERO2,
        "process_group": (sharding, replicating),
        "sync_module_states": True,
        "auto_wrap_policy": ModuleWrapPolicy({Part}),
    }


@case(ranks=4)
def the_first_dimension_of_a_mesh(model: nn.Module) -> Arguments:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    return {"device_mesh": mesh, "auto_wrap_policy": ModuleWrapPolicy({Part})}


def train(wrap: Callable[..., Any], make: Callable[[nn.Module], Arguments]) -> dict[str, Any]:
    """Three steps; what they gave and the model at the end."""
    torch.manual_seed(0)
    model: Any = Net()
    arguments = make(model)
    model = wrap(model, **arguments, device_id=CPU)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    losses, dtypes = [], []
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.BatchNorm1d)):
            module.register_forward_hook(lambda _, i, o: dtypes.append((i[0].dtype, o.dtype)))
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        loss = model(torch.randn(8, 5)).float().square().mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "dtypes": dtypes, **snapshot(model)}


def specialized(model: nn.Module, **given: Any) -> nn.Module:
    """``shard`` as it is written for a program that passes these arguments, to such models."""
    has = {"HAS_BATCH_NORM", "HAS_FLOAT_BUFFERS"}
    custom = isinstance(given.get("auto_wrap_policy"), CustomPolicy)
    if custom or given.get("mixed_precision") is not None:
        has |= {"HAS_CAST_SETTINGS", "HAS_LOW_PRECISION_GRADS"}
    if custom:
        has.add("HAS_CUSTOM_POLICIES")
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        has.add("HAS_META_TENSORS")
    lacking = support_library.facts() - has
    names: dict[str, Any] = {"__name__": "specialized"}
    exec(support_library.written({"shard": {"module", *given}}, lacking), names)
    sharded: nn.Module = names["shard"](model, **given)
    return sharded


def run(name: str, how: str) -> None:
    """Train with the constructor and with ``shard``; raises AssertionError where they differ."""
    fsdp1.allow()
    dist.init_process_group("gloo")
    before = train(functools.partial(FSDP, use_orig_params=True), CASES[name])
    after = train({"whole": support.shard, "specialized": specialized}[how], CASES[name])
    assert after["units"] == before["units"], (before["units"], after["units"])
    assert after["dtypes"] == before["dtypes"]
    torch.testing.assert_close(after["losses"], before["losses"], rtol=1e-6, atol=1e-7)
    for kind in ("parameters", "buffers"):
        assert after[kind].keys() == before[kind].keys()
        for key, value in before[kind].items():
            torch.testing.assert_close(after[kind][key], value, rtol=1e-5, atol=1e-6, msg=key)
    dist.destroy_process_group()
