"""Functions on FSDP2 models, written by fsdp-migrate. Plain torch: edit and move them freely."""

import contextlib
import enum
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor


class ShardingStrategy(enum.Enum):
    """The project's names for how much of a model is sharded, as FSDP1 had them."""

    FULL_SHARD = enum.auto()
    SHARD_GRAD_OP = enum.auto()
    NO_SHARD = enum.auto()
    HYBRID_SHARD = enum.auto()
    _HYBRID_SHARD_ZERO2 = enum.auto()


class StateDictType(enum.Enum):
    """The project's names for kinds of checkpoint, as FSDP1 had them."""

    FULL_STATE_DICT = enum.auto()
    LOCAL_STATE_DICT = enum.auto()
    SHARDED_STATE_DICT = enum.auto()


def sharding_kwargs(
    strategy: object, device_type: str = "cuda", mesh: Any = None
) -> dict[str, Any]:
    """The ``fully_shard`` arguments that do what a sharding strategy did.

    Args:
        strategy: a strategy, its name, or None for FULL_SHARD.
        device_type: the type of device a mesh is made for.
        mesh: the mesh to use; made when None and the strategy needs one.

    Raises:
        ValueError: there is no such strategy.
    """
    name = getattr(
        strategy, "name", "FULL_SHARD" if strategy is None else str(strategy)
    )
    if name not in ShardingStrategy.__members__:
        raise ValueError(f"no such sharding strategy: {strategy!r}")
    kwargs: dict[str, Any] = {}
    if name in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"):
        kwargs["reshard_after_forward"] = False
    world = dist.get_world_size()
    if mesh is None and name in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
        devices = torch.accelerator.device_count()
        mesh = init_device_mesh(
            device_type,
            (world // devices, devices),
            mesh_dim_names=("replicate", "shard"),
        )
    elif mesh is None and name == "NO_SHARD":
        mesh = init_device_mesh(
            device_type, (world, 1), mesh_dim_names=("replicate", "shard")
        )
    if mesh is not None:
        kwargs["mesh"] = mesh
    return kwargs


def shard_by_policy(
    root: nn.Module,
    policy: Callable[..., bool] | None,
    *,
    ignored_modules: Collection[nn.Module] = (),
    **kwargs: Any,
) -> None:
    """Shard the modules below ``root`` that ``policy`` picks; ``root`` is up to the caller.

    ``policy(module=, recurse=, nonwrapped_numel=)`` is asked as FSDP1 asked it: with
    ``recurse=True`` whether to look into a module, with ``recurse=False`` and the number
    of parameters its own shards have not taken whether to shard it.
    """
    if policy is None:
        return
    ignored_params = kwargs.get("ignored_params") or set()

    def visit(module: nn.Module) -> int:
        total = sum(p.numel() for p in module.parameters() if p not in ignored_params)
        if not policy(module=module, recurse=True, nonwrapped_numel=total):
            return 0
        done = sum(visit(c) for c in module.children() if c not in ignored_modules)
        if module is root:
            return done
        if not policy(module=module, recurse=False, nonwrapped_numel=total - done):
            return done
        if not isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            fully_shard(module, **kwargs)
        return total

    visit(root)


def take_rank0_state(model: nn.Module) -> dict[str, Any]:
    """Take the weights and buffers that rank 0 holds, and put the model on the meta device.

    For models that only rank 0 has materialised: shard the model next, then give every rank its
    part with :func:`load_rank0_state`. Shared parameters stay shared.

    Returns:
        On rank 0 the state on the CPU; on other ranks an empty one.
    """
    state: dict[str, Any] = {"model": {}, "buffers": {}}
    if dist.get_rank() == 0:
        state["model"] = {
            k: v.detach().cpu().clone() for k, v in model.state_dict().items()
        }
        state["buffers"] = {
            k: v.detach().cpu().clone() for k, v in model.named_buffers()
        }
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    model.to("meta")
    for first, *others in names.values():
        owner, _, attribute = first.rpartition(".")
        shared = getattr(model.get_submodule(owner), attribute)
        for other in others:
            owner, _, attribute = other.rpartition(".")
            setattr(model.get_submodule(owner), attribute, shared)
    return state


def load_rank0_state(
    model: nn.Module,
    state: dict[str, Any],
    device: torch.device | str,
    cpu_offload: bool = False,
) -> None:
    """Materialise a sharded model on ``device`` with what :func:`take_rank0_state` took.

    Buffers are broadcast too, those that are not part of the state dict included.
    """
    model.to_empty(device="cpu" if cpu_offload else device)
    options = StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=True, cpu_offload=cpu_offload
    )
    set_model_state_dict(model, state["model"], options=options)
    for name, buffer in model.named_buffers():
        value = buffer.to(device)
        if name in state["buffers"]:
            value.copy_(state["buffers"][name])
        dist.broadcast(value, src=0)
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._buffers[attribute] = value


def reshard_parameters(model: nn.Module) -> None:
    """Make every parameter a sharded ``DTensor`` again.

    After a forward without a backward (evaluation) the root's parameters are still whole.
    """
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@contextlib.contextmanager
def no_sync(model: nn.Module, keep_unsharded: bool = False) -> Iterator[None]:
    """Accumulate gradients without reducing them over the ranks.

    Args:
        keep_unsharded: leave parameters gathered between micro-batches, as SHARD_GRAD_OP did.
    """
    inner: Any = getattr(model, "_orig_mod", model)
    if not isinstance(inner, FSDPModule):  # DistributedDataParallel has its own
        with inner.no_sync():
            yield
        return
    inner.set_requires_gradient_sync(False)
    if keep_unsharded:
        inner.set_reshard_after_backward(False)
    try:
        yield
    finally:
        inner.set_requires_gradient_sync(True)
        if keep_unsharded:
            inner.set_reshard_after_backward(True)


def clip_grad_norm_(
    model: nn.Module, max_norm: float, norm_type: float = 2.0
) -> torch.Tensor:
    """Clip the gradients of all parameters together, ignored (unsharded) ones included.

    Returns:
        The total norm before clipping, the same plain scalar tensor on every rank.
    """
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.grad is not None:
            mesh = getattr(parameter.grad, "device_mesh", None)
            groups.setdefault(mesh, []).append(parameter)
    norms = []
    for group in groups.values():
        grads = [p.grad for p in group if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads, norm_type)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    if not norms:
        return torch.tensor(0.0)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    for group in groups.values():
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total


def full_model_state(
    model: nn.Module, *, cpu_offload: bool, rank0_only: bool
) -> dict[str, Any]:
    """The whole model state under plain names, on every rank or on rank 0 (others get ``{}``)."""
    if cpu_offload and rank0_only:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        return get_model_state_dict(model, options=options)
    whole = StateDictOptions(full_state_dict=True)
    state: dict[str, Any] = get_model_state_dict(model, options=whole)
    if rank0_only and dist.get_rank() != 0:
        return {}
    if cpu_offload:
        return {k: v.cpu() if torch.is_tensor(v) else v for k, v in state.items()}
    return state


def load_full_model(
    model: nn.Module,
    state_dict: dict[str, Any] | None,
    *,
    strict: bool = True,
    from_rank0: bool = False,
) -> Any:
    """Load a whole (unsharded) model state, such as FSDP1's FULL_STATE_DICT.

    Args:
        state_dict: plain tensors by plain names. Not changed.
        from_rank0: only rank 0 has it; other ranks pass None or ``{}``.

    Raises:
        RuntimeError: on every rank, with ``strict``, if keys are missing or unexpected.
    """
    reshard_parameters(model)
    state = dict(state_dict or {})
    problem: list[Any] = [None]
    if strict and (not from_rank0 or dist.get_rank() == 0):
        wanted = set(get_model_state_dict(model))  # sharded, so nothing is communicated
        missing, unexpected = sorted(wanted - set(state)), sorted(set(state) - wanted)
        if missing or unexpected:
            problem = [f"missing keys: {missing}, unexpected keys: {unexpected}"]
    if from_rank0:
        dist.broadcast_object_list(problem, src=0)
    if problem[0]:
        raise RuntimeError(f"cannot load the model state: {problem[0]}")
    options = StateDictOptions(
        full_state_dict=True, broadcast_from_rank0=from_rank0, strict=strict
    )
    return set_model_state_dict(model, state, options=options)


def full_optimizer_state(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    cpu_offload: bool = True,
    rank0_only: bool = False,
) -> dict[str, Any]:
    """The whole optimizer state by parameter name, as FSDP1's FULL_STATE_DICT had it.

    An optimizer that has not stepped yet has an empty state, and keeps it: asking DCP directly
    would take a step to create one.
    """
    reshard_parameters(model)
    absent = rank0_only and dist.get_rank() != 0
    if not optimizer.state:
        names = {p: _plain_name(n) for n, p in model.named_parameters()}
        groups = [
            {**group, "params": [names[p] for p in group["params"]]}
            for group in optimizer.param_groups
        ]
        return {} if absent else {"state": {}, "param_groups": groups}
    offload = cpu_offload and rank0_only
    options = StateDictOptions(full_state_dict=True, cpu_offload=offload)
    state: dict[str, Any] = dict(
        get_optimizer_state_dict(model, optimizer, options=options)
    )
    if absent:
        return {}
    if cpu_offload and not offload:
        for values in state["state"].values():
            for key, value in values.items():
                if torch.is_tensor(value):
                    values[key] = value.cpu()
    return state


def load_full_optimizer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state_dict: dict[str, Any] | None,
    *,
    from_rank0: bool = False,
) -> None:
    """Load a whole optimizer state, such as FSDP1's, keyed by parameter name or by index.

    Args:
        state_dict: the state. Not changed.
        from_rank0: only rank 0 has it; other ranks pass None or ``{}``.
    """
    reshard_parameters(model)
    state = _by_name(model, optimizer, state_dict) if state_dict else {}
    settings = [
        {k: v for k, v in g.items() if k != "params"}
        for g in state.get("param_groups", [])
    ]
    box: list[Any] = [bool(state.get("state")), settings]
    if from_rank0:
        dist.broadcast_object_list(box, src=0)
    if not box[0]:  # nothing but hyper-parameters, such as SGD without momentum
        for group, saved in zip(optimizer.param_groups, box[1], strict=True):
            group.update(saved)
        return
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=from_rank0)
    set_optimizer_state_dict(model, optimizer, state, options=options)


def _by_name(
    model: nn.Module, optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any]:
    """Key a state by parameter name, and give every parameter a step counter of its own.

    FSDP1 saved one ``step`` tensor for all parameters of a flat parameter; loaded as it is, Adam
    would count it once for each of them.
    """
    names = {p: _plain_name(n) for n, p in model.named_parameters()}
    ordered = [names[p] for group in optimizer.param_groups for p in group["params"]]

    def name(key: Any) -> str:
        return ordered[key] if isinstance(key, int) else _plain_name(key)

    state = {
        name(key): {
            field: value.clone()
            if torch.is_tensor(value) and value.dim() == 0
            else value
            for field, value in values.items()
        }
        for key, values in state_dict["state"].items()
    }
    groups = [
        {**group, "params": [name(key) for key in group["params"]]}
        for group in state_dict["param_groups"]
    ]
    return {"state": state, "param_groups": groups}


def _plain_name(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


@contextlib.contextmanager
def full_params(
    model: nn.Module,
    *,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Give every module whole parameters inside the block, in their storage dtype.

    Args:
        writeback: keep changes: each rank writes its own slice of what it changed back.
        rank0_only: other ranks keep their shards.
        with_grads: gather gradients too.

    Raises:
        NotImplementedError: ``writeback`` together with ``rank0_only``, as in FSDP1.
    """
    if writeback and rank0_only:
        raise NotImplementedError("writeback=True and rank0_only=True is not supported")
    reshard_parameters(model)
    whole: dict[nn.Parameter, nn.Parameter] = {}
    places: list[tuple[nn.Module, str, nn.Parameter]] = []
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if not isinstance(parameter, DTensor):
                    continue
                assert isinstance(parameter, nn.Parameter)
                if parameter not in whole:
                    whole[parameter] = _gathered(
                        parameter, rank0_only, offload_to_cpu, with_grads
                    )
                places.append((module, name, parameter))
                module._parameters[name] = whole[parameter]
    try:
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter
        if writeback:
            with torch.no_grad():
                for sharded, changed in whole.items():
                    _write_back(sharded, changed)


def _gathered(
    parameter: Any, rank0_only: bool, offload_to_cpu: bool, with_grads: bool
) -> nn.Parameter:
    local = parameter.to_local()
    full = parameter.detach().full_tensor()
    if full.untyped_storage().data_ptr() == local.untyped_storage().data_ptr():
        full = full.clone()  # one rank: full_tensor() is the shard itself
    gradient: Any = parameter.grad if with_grads else None
    if gradient is not None:
        gradient = gradient.full_tensor()
    if rank0_only and dist.get_rank() != 0:
        full, gradient = local.detach(), None
    elif offload_to_cpu:
        full = full.cpu()
        gradient = gradient.cpu() if gradient is not None else None
    result = nn.Parameter(full, requires_grad=parameter.requires_grad)
    result.grad = gradient
    return result


def _write_back(sharded: Any, changed: nn.Parameter) -> None:
    source = distribute_tensor(
        changed.detach().to(sharded.device),
        sharded.device_mesh,
        sharded.placements,
        src_data_rank=None,  # every rank keeps its own values: nothing is communicated
    )
    sharded.to_local().copy_(source.to_local())
