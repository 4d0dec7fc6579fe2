"""See what a program trained: the models that are alive when it ends its process group.

Programs need no word of this: :func:`watch` is called before they start.
"""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor

from fsdp_migrate.verify.capture.fsdp1_uses import Uses

WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
# Every module, with its number in the order in which they were built. All ranks share that order,
# and keep what the program drops: Python removes cycles at another moment on each.
BUILT: dict[nn.Module, int] = {}


def watch(file: Path) -> None:
    """Write the models to ``file`` at the moment the program destroys its process group."""
    build = nn.Module.__init__

    @functools.wraps(build)
    def note_and_build(module: nn.Module, *args: Any, **kwargs: Any) -> None:
        build(module, *args, **kwargs)
        BUILT.setdefault(module, len(BUILT))

    nn.Module.__init__ = note_and_build  # type: ignore[method-assign]
    destroy = dist.destroy_process_group

    def observe_and_destroy(*args: Any, **kwargs: Any) -> None:
        torch.save(sorted(map(snapshot, roots()), key=looks), file)
        destroy(*args, **kwargs)

    dist.destroy_process_group = observe_and_destroy


def watch_uses(tree: Path, file: Path) -> None:
    """Write to ``file`` where code below ``tree`` uses FSDP1, as it is seen."""

    def say(kind: str, **facts: Any) -> None:
        with file.open("a") as lines:
            lines.write(json.dumps({"t": kind, **facts}) + "\n")

    Uses(str(tree), say, lambda: 0).install()


def plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "").replace(wrapper.rstrip("."), "")
    return name.rstrip(".")


def roots() -> list[nn.Module]:
    """Sharded models that are not part of another: on all ranks the same, in the same order.

    A snapshot is a collective: a model that one rank alone still has would be waited for.
    """
    gc.collect()
    kinds = (FSDPModule, FullyShardedDataParallel)
    # By type, not isinstance: some objects are proxies of what is gone.
    found = [m for m in gc.get_objects() if issubclass(type(m), kinds)]
    inner = {id(m) for model in found for m in model.modules() if m is not model}
    outer = [m for m in found if id(m) not in inner]
    return sorted(outer, key=lambda m: BUILT.get(m, len(BUILT)))


def looks(state: dict[str, Any]) -> list[tuple[object, ...]]:
    """What a model's snapshot is sorted by: models of one kind differ in shapes, or in values.

    Both versions have the same values but for rounding, which one decimal place does not show.
    """
    return [
        (name, tuple(p.shape), round(p.double().sum().item(), 1))
        for name, p in sorted(state["parameters"].items())
    ]


def snapshot(model: nn.Module) -> dict[str, Any]:
    """The units of a model, its whole parameters, and this rank's buffers, by plain name."""
    state: dict[str, Any] = {"units": units(model)}
    if isinstance(model, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            state["parameters"] = {n: p.detach().clone() for n, p in named(model)}
    else:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        state["parameters"] = {n: whole(p.detach()) for n, p in named(model)}
    state["buffers"] = {plain(n): b.clone() for n, b in model.named_buffers()}
    return state


def named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in model.named_parameters():
        yield plain(name), parameter


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def units(model: nn.Module) -> dict[str, list[str]]:
    """Which parameters each unit gathers together, by plain name; units that have any."""
    names: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        names[module] = plain(name)  # of wrapper and wrapped module the same
    found: dict[str, list[str]] = {}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group
            infos = [p._module_info for p in group.fsdp_params] if group else []
            owned = [(info.module, info.param_name) for info in infos]
        elif isinstance(module, FullyShardedDataParallel):
            flat = module._handle.flat_param._param_infos if module._handle else ()
            owned = [(info.module, info.param_name) for info in flat]
        else:
            continue
        if owned:
            found[names[module]] = sorted(f"{names[m]}.{n}".lstrip(".") for m, n in owned)
    return found
