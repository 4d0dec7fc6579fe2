"""What docs/fsdp1-to-fsdp2.md says of torch itself; each function runs on two ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.checks import raised


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Outer(Block):
    """A unit in which there is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.linear(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(Block(), Block(), Block())
        self.head = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


class _Gathers(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "allgather" in str(func) or "all_gather_into" in str(func)
        return func(*args, **(kwargs or {}))


def _mesh(*shape: int, names: tuple[str, ...] | None = None) -> Any:
    return init_device_mesh("cpu", shape or (2,), mesh_dim_names=names)


def _gathers(model: nn.Module) -> int:
    """How many gathers one step makes behind the first, which settles who is the root."""
    x = torch.ones(2, 4)
    model(x).sum().backward()
    with _Gathers() as seen:
        model(x).sum().backward()
    return seen.count


def _sharded(**kwargs: Any) -> nn.Module:
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=_mesh(), **kwargs)
    return fully_shard(model, mesh=_mesh(), **kwargs)


def true_on_every_call_gathers_the_root_once_more() -> None:
    policy = ModuleWrapPolicy({Block})
    before = FSDP(Net(), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    assert _gathers(before) == _gathers(_sharded()) == 7
    assert _gathers(_sharded(reshard_after_forward=True)) == 8
    assert _gathers(_sharded(reshard_after_forward=False)) == 4


def a_loop_from_the_outside_in_fails_where_units_nest() -> None:
    def run(order: Callable[[Any], Any]) -> torch.Tensor:
        model = nn.Sequential(Outer())
        for module in order(list(model.modules())):
            if isinstance(module, Block):
                fully_shard(module, mesh=_mesh())
        out: torch.Tensor = fully_shard(model, mesh=_mesh())(torch.ones(2, 4))
        return out

    assert raised(lambda: run(list))
    assert run(reversed).shape == (2, 4)


def without_a_call_on_the_root_ranks_drift_apart() -> None:
    model = Net()
    for block in model.blocks:
        fully_shard(block, mesh=_mesh())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    model(torch.randn(8, 4)).square().sum().backward()
    optimizer.step()
    weights = [torch.zeros(4, 4) for _ in range(2)]
    dist.all_gather(weights, model.head.weight.detach())
    assert not torch.equal(*weights)


def the_first_dimension_of_a_mesh_replicates_and_needs_a_name() -> None:
    names = ("replicate", "shard")
    halves = fully_shard(nn.Linear(4, 4), mesh=_mesh(1, 2, names=names))
    wholes = fully_shard(nn.Linear(4, 4), mesh=_mesh(2, 1, names=names))
    assert halves.weight.to_local().shape == (2, 4)  # type: ignore[operator]
    assert wholes.weight.to_local().shape == (4, 4)  # type: ignore[operator]
    assert raised(lambda: fully_shard(nn.Linear(4, 4), mesh=_mesh(1, 2)))


def computed_buffers_are_lost_on_the_meta_device() -> None:
    class Rotary(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("table", torch.arange(1.0, 5.0), persistent=False)

    with torch.device("meta"):
        model = Rotary()
    fully_shard(model, mesh=_mesh())
    model.to_empty(device="cpu")
    model.reset_parameters()
    assert not torch.equal(model.table, torch.arange(1.0, 5.0))


def ignored_parameters_are_a_set() -> None:
    model = Net()
    ignored = list(model.head.parameters())
    assert raised(lambda: fully_shard(Net(), mesh=_mesh(), ignored_params=ignored))  # type: ignore[arg-type]
    fully_shard(model, mesh=_mesh(), ignored_params=set(ignored))
    assert type(model.head.weight) is nn.Parameter


def a_sharded_module_has_another_class() -> None:
    model = fully_shard(Block(), mesh=_mesh())
    assert isinstance(model, Block)
    assert type(model) is not Block
    assert type(model).__name__ == "FSDPBlock"


CHECKS = [
    each.__name__
    for each in (
        true_on_every_call_gathers_the_root_once_more,
        a_loop_from_the_outside_in_fails_where_units_nest,
        without_a_call_on_the_root_ranks_drift_apart,
        the_first_dimension_of_a_mesh_replicates_and_needs_a_name,
        computed_buffers_are_lost_on_the_meta_device,
        ignored_parameters_are_a_set,
        a_sharded_module_has_another_class,
    )
]


def run(name: str) -> None:
    dist.init_process_group("gloo")
    globals()[name]()
    dist.destroy_process_group()
