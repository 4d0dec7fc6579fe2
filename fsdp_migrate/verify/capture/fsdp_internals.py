"""Everything this project knows about torch's private FSDP and DTensor attributes, in one place.

Where an attribute is missing or has an unexpected form, :class:`Unsupported` is raised; nothing is
guessed. Read from torch 2.13: ``torch/distributed/fsdp/_flat_param.py`` (``FlatParameter``,
``_ShardParamInfo``), ``_fully_shard/_fsdp_state.py`` (``FSDPState``) and ``_fsdp_param.py``
(``FSDPParam``, ``ParamModuleInfo``) beside it, ``torch/distributed/tensor/_utils.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fsdp_migrate.verify.capture.sketch import Piece
from fsdp_migrate.verify.inject.config import FSDP1, FSDP2

Slot = tuple[nn.Module, str]
"""Where a parameter sits: a module and an attribute name. One parameter may sit in several."""


class Unsupported(Exception):
    """This version or combination of torch features cannot be recorded faithfully."""


@dataclass(frozen=True)
class Shard:
    """This rank's part of one original parameter.

    ``data`` is the live local storage (may have no elements), ``grad`` the gradient the optimizer
    would use, both in the layout of ``piece``. ``owner`` is the object an optimizer holds: FSDP1's
    flat parameter (which owns many shards), FSDP2's DTensor, or the parameter itself.
    """

    slots: tuple[Slot, ...]
    piece: Piece
    data: torch.Tensor
    grad: torch.Tensor | None
    owner: torch.Tensor
    requires_grad: bool
    kind: str
    """``fsdp1``, ``fsdp2``, or ``plain`` for a parameter that no FSDP unit manages."""
    offset: int = 0
    """Where ``data`` begins in the local elements of ``owner``."""


@dataclass(frozen=True)
class Unit:
    """One group of parameters that is gathered and reduced together."""

    module: nn.Module
    shards: tuple[Shard, ...]
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None


def is_fsdp1(module: nn.Module) -> bool:
    """Whether ``module`` is a ``FullyShardedDataParallel`` wrapper."""
    source = sys.modules.get(FSDP1)
    return source is not None and isinstance(module, source.FullyShardedDataParallel)


def is_fsdp2(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was applied to ``module`` itself."""
    source = sys.modules.get(FSDP2)
    return source is not None and isinstance(module, source.FSDPModule)


def wrapped_attribute(module: nn.Module) -> str | None:
    """The attribute under which a pure wrapper keeps the module it wraps; None for any other.

    Names are given without these levels, since a migration adds or removes them.
    """
    if is_fsdp1(module):
        return "_fsdp_wrapped_module"
    kind = type(module)
    # By base class: what fully_shard makes of a CheckpointWrapper says it were of module "abc".
    torchs = {base.__name__ for base in kind.__mro__ if base.__module__.startswith("torch.")}
    if "ActivationWrapper" in torchs:
        return "_checkpoint_wrapped_module"
    if "OptimizedModule" in torchs:
        return "_orig_mod"
    if kind.__name__ == "DistributedDataParallel" and kind.__module__.startswith("torch."):
        return "module"
    return None


def units_of(module: nn.Module) -> Iterator[Unit]:
    """The units attached to ``module`` itself (not to its children).

    Raises :class:`Unsupported` when torch's private structure is not the known one.
    """
    try:
        if is_fsdp1(module):
            yield from _fsdp1_units(module)
        elif is_fsdp2(module):
            yield from _fsdp2_units(module)
    except (AttributeError, TypeError) as error:
        raise Unsupported(
            f"torch {torch.__version__} keeps FSDP state differently: {error}"
        ) from None


def _fsdp1_units(module: Any) -> Iterator[Unit]:
    handle = module._handle
    if handle is None:  # a wrapper whose parameters all belong to inner wrappers
        return
    flat = handle.flat_param
    aliases: dict[tuple[int, str], list[Slot]] = {}
    for shared in flat._shared_param_infos:
        key = (id(shared.prim_module), shared.prim_param_name)
        aliases.setdefault(key, []).append((shared.module, shared.param_name))
    originals = flat._params if handle._use_orig_params else [None] * len(flat._param_infos)
    # Before the first forward the shard is the parameter's own data; afterwards that may be the
    # gathered whole, and the shard is kept apart (FlatParamHandle.init_flat_param_attributes).
    local = getattr(flat, "_local_shard", flat.data)
    shards = []
    for info, shape, cut, original in zip(
        flat._param_infos, flat._shapes, flat._shard_param_infos, originals, strict=True
    ):
        start = cut.intra_param_start_idx if cut.in_shard else 0
        count = cut.numel_in_shard if cut.in_shard else 0
        offset = cut.offset_in_shard if cut.in_shard else 0
        whole = shape.numel()
        if original is None:
            grad = None if flat.grad is None else _cut(flat.grad, offset, count)
        else:
            grad = _original_grad(original, start, count, whole)
        shards.append(
            Shard(
                slots=(
                    (info.module, info.param_name),
                    *aliases.get((id(info.module), info.param_name), []),
                ),
                piece=Piece(tuple(shape), (start,), (count,), flat=True),
                data=_assigned(handle, original, _cut(local, offset, count)),
                grad=grad,
                owner=flat if original is None else original,
                requires_grad=bool((flat if original is None else original).requires_grad),
                kind="fsdp1",
                offset=offset if original is None else 0,
            )
        )
    yield Unit(module, tuple(shards), handle._fwd_bwd_param_dtype, handle._reduce_dtype)


def _assigned(handle: Any, original: Any, own: torch.Tensor) -> torch.Tensor:
    """A rank's part of a parameter: what the program gave ``p.data``, if it did so.

    The flat parameter has that from the next forward on (``FlatParamHandle._writeback_orig_params``
    of torch), but not what is given to parameters that are gathered.
    """
    if original is None or original.numel() != own.numel():
        return own
    is_gathered = handle.uses_sharded_strategy and not handle.is_sharded(handle.flat_param)
    return own if is_gathered else original.detach().reshape(-1)


def _cut(flat: torch.Tensor, offset: int, count: int) -> torch.Tensor:
    return flat.detach().reshape(-1)[offset : offset + count]


def _original_grad(
    original: torch.Tensor, start: int, count: int, whole: int
) -> torch.Tensor | None:
    """The gradient of a parameter kept as an object of its own (``use_orig_params=True``)."""
    grad = original.grad
    if grad is None:
        return None
    if grad.numel() == count:
        return grad.detach().reshape(-1)
    if grad.numel() == whole:
        return _cut(grad, start, count)
    raise Unsupported(f"a gradient of {grad.numel()} elements for a shard of {count}")


def _fsdp2_units(module: Any) -> Iterator[Unit]:
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)  # torch 2.12 and later: several per module
    if groups is None:
        groups = [state._fsdp_param_group] if state._fsdp_param_group else []
    for group in groups:
        shards = []
        for param in group.fsdp_params:
            info = param._module_info
            slots = [(info.module, info.param_name)]
            slots += zip(info.shared_modules, info.shared_param_names, strict=True)
            shards.append(dtensor_shard(tuple(slots), param.sharded_param, "fsdp2"))
        policy = group.mp_policy
        # Same fall-back as FSDPParamGroup._init_mp_dtypes: reduce in the compute dtype.
        yield Unit(
            module, tuple(shards), policy.param_dtype, policy.reduce_dtype or policy.param_dtype
        )


def unit_key(module: Any) -> int:
    """The same number for modules that share one unit (``fully_shard([a, b])``)."""
    return id(module._get_fsdp_state()) if is_fsdp2(module) else id(module)


def is_dtensor(tensor: object) -> bool:
    """Whether ``tensor`` is a DTensor; never imports the package by itself."""
    source = sys.modules.get("torch.distributed.tensor")
    return source is not None and isinstance(tensor, source.DTensor)


def dtensor_shard(slots: tuple[Slot, ...], param: Any, kind: str) -> Shard:
    """The local part of a parameter that is a DTensor.

    Raises :class:`Unsupported` for placements whose elements cannot be located.
    """
    from torch.distributed.tensor._utils import (
        compute_local_shape_and_global_offset,
    )

    for placement in param.placements:
        if type(placement).__name__ not in ("Shard", "Replicate"):
            raise Unsupported(f"parameters placed as {placement}")
    size, offset = compute_local_shape_and_global_offset(
        param.shape, param.device_mesh, param.placements
    )
    local = param._local_tensor.detach()
    if tuple(local.shape) != tuple(size):
        raise Unsupported(
            f"a local tensor of shape {tuple(local.shape)} where {tuple(size)} is due"
        )
    grad = param.grad
    if grad is not None:
        grad = (grad._local_tensor if is_dtensor(grad) else grad).detach()
    piece = Piece(tuple(param.shape), tuple(offset), tuple(size), flat=False)
    return Shard(slots, piece, local, grad, param, param.requires_grad, kind)


def plain_shard(slots: tuple[Slot, ...], param: torch.Tensor) -> Shard:
    """A parameter that no unit manages: this rank holds all of it (or a DTensor made by others)."""
    if is_dtensor(param):
        return dtensor_shard(slots, param, "plain")
    shape = tuple(param.shape)
    piece = Piece(shape, (0,) * len(shape), shape, flat=False)
    grad = None if param.grad is None else param.grad.detach()
    return Shard(slots, piece, param.detach(), grad, param, param.requires_grad, "plain")


def local_part(tensor: Any) -> torch.Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    local: torch.Tensor = tensor._local_tensor if is_dtensor(tensor) else tensor
    return local


def loader_iterator() -> Any:
    """The base class of what iterating over a ``DataLoader`` gives."""
    return sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter


def fsdp1_on_cpu() -> tuple[Any, str, Any, str, str]:
    """Functions of FSDP1 that fail or do otherwise without an accelerator: owner and names.

    The check of ``sync_module_states``, ``FlatParamHandle.to_cpu`` and what is done with an earlier
    gradient before a backward.
    """
    from torch.distributed.fsdp import _flat_param, _init_utils

    check = "_check_module_states_for_sync_module_states"
    handle = _flat_param.FlatParamHandle
    return _init_utils, check, handle, "to_cpu", "prepare_gradient_for_backward"


def forgets_gradient(handle: Any) -> bool:
    """Whether FSDP1 on a GPU would drop what a unit has in ``grad`` when a backward begins.

    With ``CPUOffload(offload_params=True)`` a reduced gradient is on the CPU, in ``_cpu_grad`` or
    written back from the views of it that original parameters are given after each forward, even
    where ``zero_grad`` took them away. There only the gradient of a ``no_sync`` is added to, which
    is whole and on the device (``FlatParamHandle.prepare_gradient_for_backward`` of torch).
    """
    flat = handle.flat_param
    if not handle._offload_params or flat.grad is None:
        return False
    if flat.grad.size() != flat._unpadded_unsharded_size:
        return True
    # A part may be as large as the whole: not sharded, or of one element.
    views = (handle.uses_sharded_strategy and flat._params) or ()
    given = (flat.grad, *(param.grad for param in views if param.grad is not None))
    offloaded = flat._cpu_grad.untyped_storage().data_ptr()
    return any(grad.untyped_storage().data_ptr() == offloaded for grad in given)


def fsdp1_at_work() -> tuple[Any, ...]:
    """The class of FSDP1 that gathers and cuts flat parameters, and what it does at every call of a
    unit. Nothing of the program runs in there."""
    from torch.distributed.fsdp._flat_param import FlatParamHandle

    names = ("pre_unshard", "unshard", "post_unshard", "reshard", "post_reshard")
    return FlatParamHandle, *names


def fsdp2_at_work() -> tuple[Any, ...]:
    """The same of FSDP2."""
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    return FSDPParamGroup, "unshard", "wait_for_unshard", "reshard"


def state_part(shard: Shard, state: Any) -> torch.Tensor:
    """The part of an optimizer's per-element state that belongs to ``shard``.

    Raises :class:`Unsupported` when the state is not laid out like the parameter.
    """
    local = local_part(state).detach().reshape(-1)
    if shard.kind == "fsdp1" and is_flat_parameter(shard.owner):
        local = local[shard.offset : shard.offset + shard.data.numel()]
    if local.numel() != shard.data.numel():
        raise Unsupported(
            f"an optimizer state of {local.numel()} elements for a shard of {shard.data.numel()}"
        )
    return local


def eager(function: Any) -> Any:
    """``function``, which ``torch.compile`` is not to look into.

    Not :func:`torch.compiler.disable`, which would import the compiler at once.
    """

    # A function of its own: torch leaves an attribute on it, which a bound method cannot have.
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    disable = getattr(torch, "_disable_dynamo", None)
    return function if disable is None else disable(call)


def is_flat_parameter(param: torch.Tensor) -> bool:
    """Whether ``param`` is FSDP1's concatenation of several parameters."""
    return bool(getattr(param, "_is_flat_param", False))


def gathered_parameters(module: Any) -> list[torch.Tensor]:
    """The temporary whole parameters that FSDP2 puts in place between a forward and its backward.

    An optimizer built at that moment holds these objects and trains nothing (pytorch issue 149205).
    """
    if not is_fsdp2(module):
        return []
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]
    params = [p for group in groups if group is not None for p in group.fsdp_params]
    whole = [getattr(param, "_unsharded_param", None) for param in params]
    return [tensor for tensor in whole if tensor is not None]


def local_scalar(norm: Any) -> tuple[torch.Tensor, str]:
    """The local value of a loss or gradient norm, and how the values combine over ranks.

    The second part is ``whole`` (every rank has the result) or ``partial:P`` (the ranks' values are
    to be combined as a P-norm). Reading the whole through ``full_tensor`` would be a collective.

    Raises :class:`Unsupported` for another placement.
    """
    if not is_dtensor(norm):
        return norm.detach(), "whole"
    local = norm._local_tensor.detach()
    for placement in norm.placements:
        kind = type(placement).__name__
        if kind in ("_NormPartial", "NormPartial"):
            return local, f"partial:{float(placement.norm_type)}"
        if kind == "Partial" and placement.reduce_op == "max":
            return local, "partial:inf"
        if kind == "Partial":
            raise Unsupported(f"a loss or gradient norm placed as {placement}")
    return local, "whole"
