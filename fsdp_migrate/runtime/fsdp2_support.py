"""Functions on FSDP2 models, written by fsdp-migrate. Plain torch: edit and move them freely."""

import copy
import dataclasses
import enum
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

# What a program may have. Of one that is known to have none, the code for it is not written.
HAS_BARE_LISTS = True  # lists of modules, without a forward, that are sharded
HAS_BATCH_NORM = True
HAS_CAST_SETTINGS = True  # for the inputs of forwards
HAS_CUSTOM_POLICIES = True
HAS_DEFAULT_DEVICES = True  # models on the machine's accelerator, as nothing says another device
HAS_FLOAT_BUFFERS = True
HAS_LOW_PRECISION_GRADS = True
HAS_META_TENSORS = True
HAS_MODULE_LISTS = True  # lists of modules that have a forward
HAS_SHARDED_PARTS = True  # before the model around them is sharded


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


class BackwardPrefetch(enum.Enum):
    """The project's names for when to prefetch, as FSDP1 had them. FSDP2 does so by itself."""

    BACKWARD_PRE = enum.auto()
    BACKWARD_POST = enum.auto()


@dataclasses.dataclass
class CPUOffload:
    """The project's setting for parameters on the CPU, as FSDP1 had it."""

    offload_params: bool = False


@dataclasses.dataclass
class MixedPrecision:
    """The project's settings for mixed precision, as FSDP1 had them."""

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    buffer_dtype: torch.dtype | None = None
    if HAS_LOW_PRECISION_GRADS:
        keep_low_precision_grads: bool = False
    if HAS_CAST_SETTINGS:
        cast_forward_inputs: bool = False
        cast_root_forward_inputs: bool = True
    if HAS_BATCH_NORM:
        _module_classes_to_ignore: Sequence[type[nn.Module]] = (
            nn.modules.batchnorm._BatchNorm,
        )


def shard(
    module: nn.Module,
    process_group: Any = None,
    sharding_strategy: Any = None,
    cpu_offload: Any = None,
    auto_wrap_policy: Any = None,
    backward_prefetch: Any = None,
    mixed_precision: Any = None,
    ignored_modules: Iterable[nn.Module] | None = None,
    param_init_fn: Callable[[nn.Module], Any] | None = None,
    device_id: int | torch.device | None = None,
    sync_module_states: bool = False,
    forward_prefetch: bool = False,
    limit_all_gathers: bool = True,
    use_orig_params: bool = False,
    ignored_states: Iterable[Any] | None = None,
    device_mesh: DeviceMesh | None = None,
    *,
    is_root: bool = True,
    holder: nn.Module | None = None,
) -> Any:
    """Shard a model in place the way FSDP1 did for these arguments, unit by unit.

    For arguments that only the running program knows.

    Args:
        backward_prefetch: not needed, FSDP2 prefetches by itself.
        forward_prefetch: not needed.
        limit_all_gathers: not needed.
        use_orig_params: let parameters keep what was set on them, as FSDP1 did.
        is_root: False for a part of a model that is sharded later: only roots cast inputs.
        holder: a module around ``module`` that is called in its place, and so is the outermost
            unit.

    Returns:
        ``module`` itself.

    Raises:
        NotImplementedError: the arguments ask for something that FSDP2 does not have.
    """
    device = _sharding_device(module, device_id)
    parts = module.modules() if HAS_SHARDED_PARTS else ()
    sharded = [part for part in parts if isinstance(part, FSDPModule)]
    left_out = (*(ignored_modules or ()), *(ignored_states or ()))
    # They keep their settings.
    ignored = {m for part in sharded for m in part.modules()}
    ignored.update(m for x in left_out if isinstance(x, nn.Module) for m in x.modules())
    ignored_params = frozenset(
        p for x in left_out for p in (x.parameters() if isinstance(x, nn.Module) else [x])
    )
    attributes = (
        {name: vars(p) for name, p in module.named_parameters() if not p.is_meta}
        if use_orig_params
        else {}
    )

    mesh = _given_mesh(process_group, device_mesh, device.type)
    root_kwargs = _fully_shard_kwargs(
        device.type, mesh, sharding_strategy, cpu_offload, mixed_precision, is_root=is_root
    )

    def shard_unit(unit: nn.Module, called: nn.Module, kwargs: dict[str, Any]) -> None:
        if HAS_META_TENSORS:
            _materialize(unit, device, param_init_fn, ignored)
        if sync_module_states:
            _broadcast_unit(unit, device, kwargs["mesh"], ignored_params)
        if ignored_params:
            kwargs = {**kwargs, "ignored_params": ignored_params}
        if HAS_MODULE_LISTS and not _is_bare(called):
            fully_shard([called], **kwargs)  # for lists with a forward, before torch 2.12
        else:
            fully_shard(called, **kwargs)

    norms: tuple[type[nn.Module], ...] = ()
    if HAS_BATCH_NORM and mixed_precision is not None and auto_wrap_policy is not None:
        norms = tuple(mixed_precision._module_classes_to_ignore)
    units = _units(module, auto_wrap_policy, norms, ignored, ignored_params)
    # Nothing gathers what is no unit of a list: each unit of it is called by itself.
    is_bare = HAS_BARE_LISTS and holder is None and _is_bare(module)
    for unit, overrides in units.items():
        kwargs = {**root_kwargs, **_precision_kwargs(mixed_precision, is_root=is_bare)}
        if isinstance(unit, norms):
            # Computed in fp32, handed on in the dtype of the units around.
            policy = MixedPrecisionPolicy(
                param_dtype=torch.float32, output_dtype=mixed_precision.param_dtype
            )
            kwargs["mp_policy"] = policy
        elif HAS_CUSTOM_POLICIES and overrides:
            if overrides.keys() & {"process_group", "device_mesh"}:
                raise NotImplementedError("a policy that gives a unit ranks of its own")
            kwargs = _fully_shard_kwargs(
                device.type,
                mesh,
                overrides.get("sharding_strategy", sharding_strategy),
                overrides.get("cpu_offload", cpu_offload),
                overrides.get("mixed_precision", mixed_precision),
                is_root=False,
            )
        shard_unit(unit, unit, kwargs)
    if not is_bare:
        shard_unit(module, holder or module, root_kwargs)
    if use_orig_params:
        for name, parameter in module.named_parameters():
            vars(parameter).update(attributes.get(name, {}))

    buffer_dtype = mixed_precision.buffer_dtype if mixed_precision is not None else None
    if HAS_FLOAT_BUFFERS and buffer_dtype is not None:
        cast: dict[torch.Tensor, torch.Tensor] = {}
        for owner in module.modules():
            if owner in ignored or isinstance(owner, norms):
                continue
            for name, buffer in owner._buffers.items():
                if buffer is not None and buffer.is_floating_point():
                    low = buffer.to(buffer_dtype)
                    owner._buffers[name] = cast.setdefault(buffer, low)
    return module


class ShardedModule(ActivationWrapper):
    """A sharded module in another one, as FSDP1's wrapper was: for classes derived from that.

    Its states and names are those of the wrapped module, and so are attributes it lacks. Torch's
    checkpointing knows how to leave this kind of wrapper out of names.
    """

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        """Hold ``module`` and shard it; the arguments are those of :func:`shard`."""
        init: Any = super().__init__
        init(module)
        shard(module, *args, holder=self, **kwargs)

    @property
    def module(self) -> Any:
        """The wrapped module, without activation checkpointing around it."""
        inner = self._checkpoint_wrapped_module
        if isinstance(inner, ActivationWrapper):
            return inner._checkpoint_wrapped_module
        return inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._checkpoint_wrapped_module(*args, **kwargs)

    def named_parameters(
        self, *args: Any, **kwargs: Any
    ) -> Iterator[tuple[str, nn.Parameter]]:
        # Of other wrappers the names stay, as in any module.
        return nn.Module.named_parameters(self, *args, **kwargs)

    def named_modules(
        self,
        memo: set[nn.Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, nn.Module]]:
        """As of any module, without a level of names for the wrapped one."""
        around = f"{prefix}." if prefix else ""
        inner = f"{around}_checkpoint_wrapped_module"
        for name, module in super().named_modules(memo, prefix, remove_duplicate):
            if name == inner:
                yield prefix, module
            elif name.startswith(f"{inner}."):
                yield around + name.removeprefix(f"{inner}."), module
            else:
                yield name, module


def _accelerator() -> torch.device:
    """The machine's accelerator, or the CPU where there is none."""
    accelerator = None
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
    return accelerator or torch.device("cpu")


def _sharding_device(
    module: nn.Module, device_id: int | torch.device | None
) -> torch.device:
    """The device that units are sharded on; made the current one when it has an index."""
    if device_id is None:
        first = next((p for p in module.parameters() if not p.is_meta), None)
        if first is not None and first.device.type != "cpu":
            return first.device
        return _accelerator()
    if isinstance(device_id, int):
        device = torch.device(_accelerator().type, device_id)
    else:
        device = torch.device(device_id)
    if device.type != "cpu" and device.index is not None:
        torch.get_device_module(device).set_device(device.index)
    return device


def _fully_shard_kwargs(
    device_type: str,
    mesh: Any,
    sharding_strategy: Any,
    cpu_offload: Any,
    mixed_precision: Any,
    *,
    is_root: bool,
) -> dict[str, Any]:
    """FSDP1's settings of a unit as arguments of ``fully_shard``, the mesh always among them."""
    name = getattr(sharding_strategy, "name", sharding_strategy) or "FULL_SHARD"
    first = mesh is not None and mesh.ndim == 2 and "HYBRID" not in name
    used = mesh[mesh.mesh_dim_names[0]] if first else mesh  # FSDP1 took the first
    kwargs = sharding_kwargs(name, device_type, used)
    if cpu_offload is not None and cpu_offload.offload_params:
        kwargs["offload_policy"] = CPUOffloadPolicy()
    return {**kwargs, **_precision_kwargs(mixed_precision, is_root=is_root)}


def _given_mesh(process_group: Any, device_mesh: Any, device_type: str) -> Any:
    """The mesh of FSDP1's arguments, its dimensions by name; None where there is none."""
    if process_group is None and device_mesh is None:
        return None
    mesh = device_mesh or mesh_of_groups(process_group, device_type)
    if mesh.ndim == 1 or mesh.mesh_dim_names:
        return mesh
    groups = [mesh.get_group(0), mesh.get_group(1)]
    return DeviceMesh.from_group(
        groups, device_type, mesh.mesh, mesh_dim_names=("replicate", "shard")
    )


def _precision_kwargs(mixed_precision: Any, *, is_root: bool) -> dict[str, Any]:
    """The ``mp_policy`` of a unit. FSDP1 casts only the root's inputs unless told otherwise."""
    if mixed_precision is None:
        return {}
    if HAS_LOW_PRECISION_GRADS and mixed_precision.keep_low_precision_grads:
        raise NotImplementedError("FSDP2 has no keep_low_precision_grads")
    if HAS_CAST_SETTINGS:
        cast_inputs = is_root and mixed_precision.cast_root_forward_inputs
        cast_inputs = mixed_precision.cast_forward_inputs or cast_inputs
    else:
        cast_inputs = is_root
    policy = MixedPrecisionPolicy(
        param_dtype=mixed_precision.param_dtype,
        reduce_dtype=mixed_precision.reduce_dtype,
        cast_forward_inputs=cast_inputs,
    )
    return {"mp_policy": policy}


def mesh_of_groups(groups: Any, device_type: str) -> Any:
    """The mesh over a process group, or over FSDP1's pair of a sharding and a replicating one.

    Nothing for None: the default mesh is the default group's.
    """
    if groups is None:
        return None
    if not isinstance(groups, (tuple, list)):
        return DeviceMesh.from_group(groups, device_type)
    sharding, replicating = groups
    return mesh_of_pair(sharding, replicating, device_type)


def mesh_of_pair(sharding: Any, replicating: Any, device_type: str) -> Any:
    """The mesh that shards over one process group and replicates over another."""
    rows: list[Any] = [None] * dist.get_world_size(replicating)
    ranks = dist.get_process_group_ranks(sharding)
    dist.all_gather_object(rows, ranks, group=replicating)
    return DeviceMesh.from_group(
        [replicating, sharding],
        device_type,
        torch.tensor(rows),
        mesh_dim_names=("replicate", "shard"),
    )


def _units(
    root: nn.Module,
    policy: Any,
    norms: tuple[type[nn.Module], ...],
    ignored: Set[nn.Module],
    ignored_params: Set[nn.Parameter],
) -> dict[nn.Module, dict[str, Any]]:
    """The modules below ``root`` that become units, children first, with settings of their own.

    Args:
        policy: an object of ``torch.distributed.fsdp.wrap``, or a function as it takes them.
        norms: classes that become units of their own whatever the policy says.
    """
    if policy is None:
        return {}
    if not HAS_CUSTOM_POLICIES or not hasattr(policy, "_run_policy"):

        def extended(module: nn.Module, recurse: bool, nonwrapped_numel: int) -> bool:
            return (
                recurse
                or isinstance(module, norms)
                or policy(module=module, recurse=False, nonwrapped_numel=nonwrapped_numel)
            )

        picked = _picked(root, extended if norms else policy, ignored, ignored_params)
        return {m: {} for m in picked}

    targets = dict(policy._run_policy(root, set(ignored), {}))
    for module in root.modules():
        if isinstance(module, norms) and module not in ignored:
            targets[module] = {}
    ordered: dict[nn.Module, dict[str, Any]] = {}
    seen = {root}

    def children_first(module: nn.Module) -> None:
        for child in module.children():
            if child not in seen:
                seen.add(child)
                children_first(child)
        if module in targets and module is not root:
            ordered[module] = targets[module]

    children_first(root)
    return ordered


def _picked(
    root: nn.Module,
    policy: Callable[..., bool],
    ignored: Collection[nn.Module],
    ignored_params: Collection[nn.Parameter],
) -> list[nn.Module]:
    """The modules below ``root`` that a policy function picks, children first."""
    found: list[nn.Module] = []

    def visit(module: nn.Module) -> int:
        total = sum(p.numel() for p in module.parameters() if p not in ignored_params)
        if not policy(module=module, recurse=True, nonwrapped_numel=total):
            return 0
        done = sum(visit(c) for c in module.children() if c not in ignored)
        if module is root:
            return done
        if not policy(module=module, recurse=False, nonwrapped_numel=total - done):
            return done
        if not _is_bare(module):
            found.append(module)
        return total

    visit(root)
    return found


def _is_bare(module: nn.Module) -> bool:
    """Whether it only holds modules: without a forward, nothing gathers its parameters."""
    holder = isinstance(module, (nn.ModuleList, nn.ModuleDict))
    return holder and type(module).forward is nn.Module.forward


def _own_modules(unit: nn.Module, ignored: Set[nn.Module]) -> list[nn.Module]:
    """A unit's modules, breadth first, without those of units inside it and ignored ones."""
    found = [unit]
    for module in found:
        for child in module.children():
            taken = isinstance(child, FSDPModule) or child in ignored
            if not taken and child not in found:
                found.append(child)
    return found


@torch.no_grad()
def _materialize(
    unit: nn.Module,
    device: torch.device,
    param_init_fn: Callable[[nn.Module], Any] | None,
    ignored: Set[nn.Module],
) -> None:
    """Give a unit on the meta device memory and first values."""
    modules = _own_modules(unit, ignored)
    direct = {m: [*m.parameters(False), *m.buffers(False)] for m in modules}
    if not any(tensor.is_meta for tensors in direct.values() for tensor in tensors):
        return
    for module, tensors in direct.items():
        if param_init_fn is not None:
            param_init_fn(module)
        elif tensors:
            module.to_empty(device=device, recurse=False)
            reset: Any = module.reset_parameters
            reset()


@torch.no_grad()
def _broadcast_unit(
    unit: nn.Module,
    device: torch.device,
    mesh: DeviceMesh,
    ignored_params: Set[nn.Parameter],
) -> None:
    """Give every rank of the mesh its first rank's parameters of a unit, and all of its buffers."""
    done: set[torch.Tensor] = set(ignored_params)
    for module in _own_modules(unit, frozenset()):
        for tensor in (*module.parameters(False), *module.buffers(False)):
            if tensor in done:
                continue
            done.add(tensor)
            tensor.data = tensor.data.to(device)
            for group in mesh.get_all_groups():
                source = dist.get_global_rank(group, 0)
                dist.broadcast(tensor.data, src=source, group=group)


@dataclasses.dataclass
class StateDictConfig:
    """The project's settings for a model's state, as FSDP1 had them."""

    offload_to_cpu: bool = False


@dataclasses.dataclass
class FullStateDictConfig(StateDictConfig):
    """Settings for a whole state."""

    rank0_only: bool = False


@dataclasses.dataclass
class LocalStateDictConfig(StateDictConfig):
    """Settings for the state of one rank, which is a sharded one now."""


@dataclasses.dataclass
class ShardedStateDictConfig(StateDictConfig):
    """Settings for a sharded state."""

    _use_dtensor: bool = False


@dataclasses.dataclass
class OptimStateDictConfig:
    """The project's settings for an optimizer's state, as FSDP1 had them."""

    offload_to_cpu: bool = True


@dataclasses.dataclass
class FullOptimStateDictConfig(OptimStateDictConfig):
    """Settings for a whole optimizer state."""

    rank0_only: bool = False


@dataclasses.dataclass
class LocalOptimStateDictConfig(OptimStateDictConfig):
    """Settings for the optimizer state of one rank, which is a sharded one now."""

    offload_to_cpu: bool = False


@dataclasses.dataclass
class ShardedOptimStateDictConfig(OptimStateDictConfig):
    """Settings for a sharded optimizer state."""

    _use_dtensor: bool = False


@dataclasses.dataclass
class StateDictSettings:
    """What kind of state a model gives and takes, as FSDP1 kept it in the model."""

    state_dict_type: StateDictType = StateDictType.FULL_STATE_DICT
    state_dict_config: Any = dataclasses.field(default_factory=StateDictConfig)
    optim_state_dict_config: Any = dataclasses.field(default_factory=OptimStateDictConfig)


def _eager(module: nn.Module) -> Any:
    """What ``torch.compile`` compiled, or the module itself."""
    return module._modules.get("_orig_mod", module)


def get_state_dict_type(module: nn.Module) -> StateDictSettings:
    """The kind of state that a model is set to: a whole one on every rank by default."""
    inner = _eager(module)
    settings: StateDictSettings | None = inner.__dict__.get("_state_dict_settings")
    return settings or StateDictSettings()


def set_state_dict_type(
    module: nn.Module,
    state_dict_type: Any,
    state_dict_config: Any = None,
    optim_state_dict_config: Any = None,
) -> StateDictSettings:
    """Set the kind of state that ``state_dict()`` gives and ``load_state_dict()`` takes.

    Of the model and of every unit in it, whoever asks. There is no LOCAL state in FSDP2: each
    rank's shard of every parameter, the sharded state, takes the place of each rank's part of the
    flat parameters.

    Returns:
        The settings before.
    """
    before = get_state_dict_type(module)
    settings = StateDictSettings(
        StateDictType[state_dict_type.name],
        state_dict_config or StateDictConfig(),
        optim_state_dict_config or OptimStateDictConfig("LOCAL" not in state_dict_type.name),
    )
    for unit in _units_with_state(module):
        _set_states(unit, settings)
    return before


def _set_states(unit: Any, settings: StateDictSettings) -> None:
    if "_state_dict_settings" not in unit.__dict__:
        unit.register_state_dict_post_hook(_give_state)
        unit.register_load_state_dict_pre_hook(_take_state)
    unit.__dict__["_state_dict_settings"] = settings


@contextmanager
def _default_states(module: nn.Module) -> Iterator[None]:
    """Let units that were not set to any kind of state give and take whole ones, as in FSDP1."""
    units = _units_with_state(module)
    unset = [u for u in units if u.__dict__.get("_state_dict_settings") is None]
    for unit in unset:
        _set_states(unit, StateDictSettings())
    try:
        yield
    finally:
        for unit in unset:
            unit.__dict__["_state_dict_settings"] = None


def model_state_dict(module: nn.Module) -> dict[str, Any]:
    """``module.state_dict()``, of the kind that the module is set to, or a whole one."""
    with _default_states(module):
        return module.state_dict()


def load_model_state_dict(
    module: nn.Module, state_dict: dict[str, Any], strict: bool = True
) -> Any:
    """``module.load_state_dict()``, of the kind that the module is set to, or a whole one."""
    with _default_states(module):
        return module.load_state_dict(state_dict, strict=strict)


@contextmanager
def state_dict_type(
    module: nn.Module,
    state_dict_type: Any,
    state_dict_config: Any = None,
    optim_state_dict_config: Any = None,
) -> Iterator[None]:
    """As :func:`set_state_dict_type`, inside the block."""
    before = {
        unit: unit.__dict__.get("_state_dict_settings")
        for unit in _units_with_state(module)
    }
    set_state_dict_type(
        module, state_dict_type, state_dict_config, optim_state_dict_config
    )
    try:
        yield
    finally:
        for unit, settings in before.items():
            unit.__dict__["_state_dict_settings"] = settings


@contextmanager
def whole_states(
    model: nn.Module, *, cpu_offload: bool = False, rank0_only: bool = False
) -> Iterator[None]:
    """Let a model give and take whole states inside the block, whoever asks.

    For functions of other libraries, which call ``state_dict()`` or ``load_state_dict()``.
    """
    config = FullStateDictConfig(cpu_offload, rank0_only)
    with state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        yield


def _units_with_state(module: nn.Module) -> list[nn.Module]:
    inner: nn.Module = _eager(module)
    return [m for m in inner.modules() if m is inner or isinstance(m, FSDPModule)]


@torch.no_grad()
def _give_state(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any
) -> None:
    """Turn the state of a unit, which is sharded, into the kind that is set."""
    settings = module.__dict__.get("_state_dict_settings")
    if settings is None or module.__dict__.get("_gives_shards"):
        return
    inside = [
        f"{prefix}{_plain_name(name + '.')}"
        for name, unit in module.named_modules()
        if unit is not module and isinstance(unit, FSDPModule)
    ]
    names = [n for n in state_dict if n.startswith(prefix)]
    own = [n for n in names if not n.startswith(tuple(inside))]  # units in this one saw to theirs
    config = settings.state_dict_config
    full = settings.state_dict_type is StateDictType.FULL_STATE_DICT
    if _is_replicated(state_dict[n] for n in own):
        config, full = StateDictConfig(), True  # FSDP1's NO_SHARD knew no other state
    absent = (
        full
        and getattr(config, "rank0_only", False)
        and not _is_first([*(state_dict[n] for n in own), *module.parameters()])
    )
    for name in own:
        value = state_dict[name]
        if not isinstance(value, DTensor) and not isinstance(module, FSDPModule):
            continue  # it is around sharded parts
        whole = _whole(value) if full else value
        if absent:
            del state_dict[name]
        elif full:
            cpu = config.offload_to_cpu
            state_dict[name] = _copied(whole, cpu=cpu, made_from=value)
        elif isinstance(value, DTensor):
            state_dict[name] = _copied(value, cpu=config.offload_to_cpu)
        elif config.offload_to_cpu and torch.is_tensor(value):
            state_dict[name] = value.cpu()


def _take_state(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *rest: Any
) -> None:
    """Turn a whole state that a unit is given into this rank's part of it."""
    settings = module.__dict__.get("_state_dict_settings")
    if settings is None:
        return
    reshard_parameters(module)
    full = settings.state_dict_type is StateDictType.FULL_STATE_DICT
    if not full and not _is_replicated(module.parameters()):
        return
    own = {_plain_name(n): p for n, p in module.named_parameters(remove_duplicate=False)}
    for name, value in list(state_dict.items()):
        if name.startswith(prefix):
            like = own.get(_plain_name(name[len(prefix) :]))
            state_dict[name] = _part(value, like)


def optim_state_dict(
    model: nn.Module, optim: torch.optim.Optimizer
) -> dict[str, Any]:
    """The state of an optimizer by parameter name, of the kind that the model is set to: copies."""
    settings = get_state_dict_type(model)
    config = settings.optim_state_dict_config
    reshard_parameters(model)
    if not optim.state:  # torch would take a first step to have one
        if getattr(config, "rank0_only", False) and dist.get_rank() != 0:
            return {}
        names = {p: _plain_name(n) for n, p in model.named_parameters()}
        return {
            "state": {},
            "param_groups": [
                copy.deepcopy({**group, "params": [names[p] for p in group["params"]]})
                for group in optim.param_groups
            ],
        }
    if settings.state_dict_type is not StateDictType.FULL_STATE_DICT:
        options = StateDictOptions(cpu_offload=config.offload_to_cpu)
    elif config.offload_to_cpu and not getattr(config, "rank0_only", False):
        state: dict[str, Any] = whole_on_cpu(get_optimizer_state_dict(model, optim))
        return state
    else:
        options = StateDictOptions(full_state_dict=True, cpu_offload=config.offload_to_cpu)
    return copy.deepcopy({**get_optimizer_state_dict(model, optim, options=options)})


def optim_state_dict_to_load(
    model: nn.Module,
    optim: torch.optim.Optimizer,
    optim_state_dict: dict[str, Any] | None,
) -> dict[str, Any]:
    """This rank's part of an optimizer state, as ``optim.load_state_dict`` takes it.

    A whole state is taken from rank 0 when the model is set so.
    """
    config = get_state_dict_type(model).optim_state_dict_config
    return optimizer_state_to_load(
        model,
        optim,
        optim_state_dict,
        from_rank0=getattr(config, "rank0_only", False),
    )


def sharding_kwargs(
    strategy: object, device_type: str = "", mesh: Any = None
) -> dict[str, Any]:
    """The ``fully_shard`` arguments that do what a sharding strategy did.

    Args:
        strategy: a strategy, its name, or None for FULL_SHARD.
        device_type: the type of device to make a mesh for, where it may be another than the
            accelerator's, which ``fully_shard`` takes.
        mesh: the mesh to use, of two dimensions for hybrid sharding; made when None and the
            strategy or the device needs one.

    Raises:
        ValueError: there is no such strategy.
    """
    name = getattr(strategy, "name", "FULL_SHARD" if strategy is None else str(strategy))
    if name not in ShardingStrategy.__members__:
        raise ValueError(f"no such sharding strategy: {strategy!r}")
    kwargs: dict[str, Any] = {}
    if name in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"):
        kwargs["reshard_after_forward"] = False
    if mesh is not None:
        if mesh.ndim != 2 and "HYBRID" in name:
            raise ValueError(f"{name} needs a mesh of two dimensions, or two groups")
        kwargs["mesh"] = mesh
    elif name in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD"):
        kind = device_type or _accelerator().type if HAS_DEFAULT_DEVICES else device_type
        sharding = 1
        if name != "NO_SHARD":
            sharding = torch.get_device_module(kind).device_count()
        kwargs["mesh"] = init_device_mesh(
            kind,
            (dist.get_world_size() // sharding, sharding),
            mesh_dim_names=("replicate", "shard"),
        )
    elif device_type:
        kwargs["mesh"] = init_device_mesh(device_type, (dist.get_world_size(),))
    return kwargs


def shard_by_policy(root: nn.Module, policy: Callable[..., bool], **kwargs: Any) -> None:
    """Shard the modules below ``root`` that ``policy`` picks; ``root`` is up to the caller.

    ``policy(module=, recurse=, nonwrapped_numel=)`` is asked as FSDP1 asked it: with
    ``recurse=True`` whether to look into a module, with ``recurse=False`` and the number
    of parameters its own shards have not taken whether to shard it.
    """
    ignored = kwargs.get("ignored_params") or ()

    def visit(module: nn.Module) -> int:
        total = sum(p.numel() for p in module.parameters() if p not in ignored)
        if not total or not policy(module=module, recurse=True, nonwrapped_numel=total):
            return 0
        done = sum(map(visit, module.children()))
        left = total - done
        if module is root or not policy(module=module, recurse=False, nonwrapped_numel=left):
            return done
        # A list of modules has no forward, and gathers nothing. Older torch refuses bare lists.
        if type(module).forward is not nn.Module.forward and not isinstance(module, FSDPModule):
            fully_shard([module], **kwargs)
        return total

    visit(root)


def units_by_size(root: nn.Module, min_num_params: int) -> list[nn.Module]:
    """The modules below ``root`` with so many parameters apart from those of units inside them.

    Inner ones come first. As in FSDP1, attention is not taken apart, and lists are no units.
    """
    units: list[nn.Module] = []

    def visit(module: nn.Module) -> int:
        total = sum(p.numel() for p in module.parameters())
        if not total or total < min_num_params or isinstance(module, nn.MultiheadAttention):
            return 0
        inner = sum(map(visit, module.children()))
        is_list = isinstance(module, (nn.ModuleList, nn.ModuleDict))
        if module is root or is_list or total - inner < min_num_params:
            return inner
        # What has no forward gathers nothing.
        if type(module).forward is not nn.Module.forward and module not in units:
            units.append(module)
        return total

    visit(root)
    return units


def take_rank0_state(model: nn.Module) -> dict[str, Any]:
    """Take the weights and buffers that rank 0 holds, and put the model on the meta device.

    For models that only rank 0 has materialised: shard the model next, then give every rank its
    part with :func:`load_rank0_state`. Shared parameters stay shared.

    Returns:
        On rank 0 the state on the CPU; on other ranks an empty one.
    """
    state: dict[str, Any] = {"model": {}, "buffers": {}}
    if dist.get_rank() == 0:
        buffers = dict(model.named_buffers(remove_duplicate=False))
        for kind, tensors in (("model", model.state_dict()), ("buffers", buffers)):
            state[kind] = {k: _copied(v, cpu=True) for k, v in tensors.items()}
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    model.to("meta")
    for first, *others in names.values():
        shared = model.get_parameter(first)
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
    targets = _sharded_state(model)
    items = _broadcast(state["model"], device)
    parts = {name: _part(value, targets.get(name)) for name, value in items}
    set_model_state_dict(model, parts)
    for name, value in _broadcast(state["buffers"], device):
        owner, _, attribute = name.rpartition(".")
        model.get_submodule(owner)._buffers[attribute] = value


@torch.no_grad()
def give_weights(model: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Give all ranks of a sharded model's mesh what its first rank held, buffers too.

    Args:
        weights: what this rank held before sharding, by name; parts that were sharded then stay
            as they are. Others than the first may have theirs on the meta device.
    """
    mesh = next(p.device_mesh for p in model.parameters() if isinstance(p, DTensor))
    for module in model.modules():
        tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(tensor.is_meta for tensor in tensors):
            module.to_empty(device=mesh.device_type, recurse=False)
    for name, parameter in model.named_parameters():
        full = weights.pop(name)
        if isinstance(parameter, DTensor) and not isinstance(full, DTensor):
            mesh = parameter.device_mesh
            if full.is_meta:
                full = torch.empty_like(full, device=mesh.device_type)
            parameter.copy_(distribute_tensor(full, mesh, parameter.placements))
    for buffer in model.buffers():
        for group in mesh.get_all_groups():
            dist.broadcast(buffer, group=group, group_src=0)


def root_units(model: nn.Module) -> list[FSDPModule]:
    """The sharded modules of a model that lie in no other one."""
    roots: list[FSDPModule] = []
    below: set[nn.Module] = set()
    for module in model.modules():  # what is around others comes first
        if isinstance(module, FSDPModule) and module not in below:
            roots.append(module)
            below.update(module.modules())
    return roots


def reshard_parameters(model: nn.Module) -> None:
    """Shard every parameter again: after an evaluation the root's are still whole."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def unit_parameters(unit: Any) -> list[nn.Parameter]:
    """The sharded parameters of a unit's own, without those of units inside it."""
    unit.reshard()
    module: nn.Module = unit
    parts = [m for m in module.modules() if m is not module]
    inner = {p for m in parts if isinstance(m, FSDPModule) for p in m.parameters()}
    return [p for p in module.parameters() if isinstance(p, DTensor) and p not in inner]


def zero_unused_gradients(module: nn.Module, *parts: str) -> None:
    """Give parameters of these parts that a step leaves out gradients of zero, as FSDP1 did.

    From torch 2.13, ``set_reduce_scatter_unused_params`` does so.
    """

    def fill(module: nn.Module, args: Any, output: Any) -> None:
        for name, parameter in module.named_parameters() if torch.is_grad_enabled() else ():
            whole = parameter.requires_grad and not isinstance(parameter, DTensor)
            if whole and parameter.grad is None and name.partition(".")[0] in parts:
                parameter.grad = torch.zeros_like(parameter)

    module.register_forward_hook(fill, prepend=True)  # while its parameters are gathered


@contextmanager
def no_sync(model: FSDPModule) -> Iterator[None]:
    """Accumulate gradients without reducing them over the ranks."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@contextmanager
def no_sync_unsharded(model: FSDPModule) -> Iterator[None]:
    """Accumulate gradients without reducing them, parameters gathered as under SHARD_GRAD_OP."""
    model.set_requires_gradient_sync(False)
    model.set_reshard_after_backward(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)
        model.set_reshard_after_backward(True)


@contextmanager
def no_sync_of_any(model: nn.Module) -> Iterator[None]:
    """Accumulate gradients without reducing them over the ranks, also those of DDP."""
    inner = model if isinstance(model, FSDPModule) else _eager(model)
    if not isinstance(inner, FSDPModule):  # DistributedDataParallel has its own
        with inner.no_sync():
            yield
        return
    inner.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        inner.set_requires_gradient_sync(True)


@contextmanager
def no_sync_of_any_unsharded(model: nn.Module) -> Iterator[None]:
    """Accumulate gradients without reducing them, also those of DDP; FSDP2's stay gathered."""
    inner = model if isinstance(model, FSDPModule) else _eager(model)
    if not isinstance(inner, FSDPModule):  # DistributedDataParallel has its own
        with inner.no_sync():
            yield
        return
    with no_sync_unsharded(inner):
        yield


def clip_grad_norm_(model: nn.Module, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
    """Clip the gradients of all parameters together, ignored (unsharded) ones included.

    The norm is added up in float32, as in FSDP1: in float16 squares overflow, or vanish.

    Returns:
        The total norm before clipping, a plain scalar tensor. The gradients of ignored parameters
        are not reduced, so a rank counts its own.
    """
    groups: dict[object, list[nn.Parameter]] = {}
    for p in model.parameters():
        if p.grad is not None:
            groups.setdefault(getattr(p.grad, "device_mesh", None), []).append(p)
    dtypes = [p.grad.dtype for p in model.parameters() if p.grad is not None]
    dtype = functools.reduce(torch.promote_types, dtypes) if dtypes else torch.float32
    wide = torch.promote_types(dtype, torch.float32)
    norms = [torch.tensor(0.0)] if not groups else []
    for group in groups.values():
        grads = [p.grad for p in group if p.grad is not None]
        parts = [torch.linalg.vector_norm(g, norm_type, dtype=wide) for g in grads]
        norm = torch.linalg.vector_norm(torch.stack(parts), norm_type)
        norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
    total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    for group in groups.values():
        torch.nn.utils.clip_grads_with_norm_(group, max_norm, total)
    return total.to(dtype)


def clip_any_grad_norm_(model: nn.Module, max_norm: float, norm_type: float) -> torch.Tensor:
    """Clip by any norm, also the infinity norm, which torch has not of a rank's empty shard."""
    if norm_type != float("inf"):
        return clip_grad_norm_(model, max_norm, norm_type)
    grads = [own_part(p.grad) for p in model.parameters() if p.grad is not None]
    largest = [g.abs().max() if g.numel() else g.new_zeros(()) for g in grads]
    total = torch.stack(largest or [torch.tensor(0.0)]).max()
    parameters = list(model.parameters())
    if any(isinstance(p, DTensor) for p in parameters):
        dist.all_reduce(total, dist.ReduceOp.MAX)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total, foreach=False)
    return total


class AgreeingGradScaler(torch.amp.GradScaler):
    """A GradScaler by which all ranks of a group skip a step where one of them has an overflow."""

    def __init__(
        self, *args: Any, process_group: dist.ProcessGroup | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.process_group = process_group

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        state = self._per_optimizer_states[id(optimizer)]
        for found_inf in state["found_inf_per_device"].values():
            dist.all_reduce(found_inf, dist.ReduceOp.MAX, self.process_group)


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor: all of one that is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full_model_state(model: nn.Module, *, cpu_offload: bool) -> dict[str, Any]:
    """The whole model state, on the first of the ranks that shard the model.

    With groups of ranks or hybrid sharding, each group has one. What is around sharded parts is
    on every rank.
    """
    given = _sharded_state(model)
    first = _is_first(given.values())
    parts = _sharded_parts(model)
    state = {}
    for name, value in given.items():
        whole = _whole(value)
        if not isinstance(value, DTensor) and not name.startswith(parts):
            state[name] = value
        elif first:
            state[name] = whole.cpu() if cpu_offload and torch.is_tensor(whole) else whole
    return state


def whole_on_cpu(state: Any) -> Any:
    """A sharded state dict with whole tensors in it, copies on the CPU of every rank."""
    if isinstance(state, dict):
        return {key: whole_on_cpu(value) for key, value in state.items()}
    if isinstance(state, DTensor):
        moved: Any = state.to(state.device_mesh.device_type)
        state = moved.full_tensor()
    return state.cpu().clone() if torch.is_tensor(state) else state


def load_full_model(
    model: nn.Module, state_dict: dict[str, Any], *, strict: bool = True
) -> Any:
    """Load a whole model state: every rank takes its part of each tensor.

    Returns:
        The missing and the unexpected keys, as ``Module.load_state_dict`` names them.
    """
    reshard_parameters(model)
    targets = _sharded_state(model)
    state = {_plain_name(name): value for name, value in state_dict.items()}
    parts = {name: _part(value, targets.get(name)) for name, value in state.items()}
    return set_model_state_dict(model, parts, options=StateDictOptions(strict=strict))


def own_optimizer_state(
    optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
) -> dict[str, Any]:
    """This rank's own part of an optimizer's state, as it is.

    Raises:
        ValueError: it is a whole one, or FSDP1 wrote it, with parts of flat parameters.
    """
    params = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in state_dict["param_groups"] for n in group["params"]]
    sharded = {n for n, p in zip(numbers, params, strict=False) if isinstance(p, DTensor)}
    if len(numbers) != len(params):
        sharded = set(state_dict["state"])
    values = [v for n in sharded for v in state_dict["state"].get(n, {}).values()]
    parts = [v for v in values if isinstance(v, torch.Tensor) and v.dim()]
    is_sharded = any(isinstance(p, DTensor) for p in params)
    if is_sharded and parts and not any(isinstance(v, DTensor) for v in parts):
        raise ValueError(
            "This state of an optimizer has no parts by parameter. Load a whole one by "
            "set_optimizer_state_dict. What FSDP1 wrote has one rank's parts of flat parameters, "
            "which do not load: resume without it, or save the whole state with FSDP1 first."
        )
    return state_dict


def separate_steps(state_dict: Any) -> Any:
    """An optimizer state in which each parameter has its ``step``: FSDP1 saved one for several."""
    for entry in state_dict.get("state", {}).values():
        if torch.is_tensor(entry.get("step")):
            entry["step"] = entry["step"].clone()
    return state_dict


def optimizer_state_to_load(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state_dict: dict[str, Any] | None,
    *,
    from_rank0: bool = False,
) -> dict[str, Any]:
    """This rank's part of an optimizer state, as ``optimizer.load_state_dict`` takes it.

    Every parameter gets tensors of its own: FSDP1 saved one ``step`` for all parameters of a flat
    parameter, and shared by them it would be counted once for each.

    Args:
        state_dict: a whole or sharded state by parameter name or index. Not changed.
        from_rank0: only rank 0 has it; other ranks pass None or ``{}``.
    """
    reshard_parameters(model)
    names = {p: _plain_name(n) for n, p in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    index = {names[p]: i for i, p in enumerate(parameters)}

    def position(key: Any) -> int | None:
        return key if isinstance(key, int) else index.get(_plain_name(key))

    saved = state_dict or {"state": {}, "param_groups": []}
    flat = {
        (position(key), field): value
        for key, values in saved["state"].items()
        for field, value in values.items()
    }
    saved_groups: list[Any] = [
        {**group, "params": [position(key) for key in group["params"]]}
        for group in saved["param_groups"]
    ]
    items: Iterable[tuple[Any, Any]] = flat.items()
    if from_rank0:
        box = [saved_groups]
        dist.broadcast_object_list(box, src=0)
        saved_groups = box[0]
        items = _broadcast(flat, _device_type(model))
    state: dict[int, dict[str, Any]] = {}
    for (place, field), value in items:
        if place is not None:  # else of a parameter that this optimizer does not have
            part = _copied(_part(value, parameters[place]))
            state.setdefault(place, {})[field] = part
    groups = []
    first = 0
    for number, group in enumerate(optimizer.param_groups):
        places = list(range(first, first + len(group["params"])))
        first += len(places)
        holding = [g for g in saved_groups if places[:1] and places[0] in g["params"]]
        settings = (holding or saved_groups[number : number + 1] or [{}])[0]
        groups.append({**group, **settings, "params": places})
    return {"state": state, "param_groups": groups}


def _sharded_parts(model: nn.Module) -> tuple[str, ...]:
    """What the names in the sharded parts of a model begin with: nothing, if it is one itself."""
    names = [n for n, m in model.named_modules() if isinstance(m, FSDPModule)]
    return tuple(_plain_name(f"{n}.") if n else "" for n in names) or ("",)


def _sharded_state(model: nn.Module) -> dict[str, Any]:
    """The sharded state of a model, whatever kind it is set to give."""
    modules = list(model.modules())
    for module in modules:
        module.__dict__["_gives_shards"] = True
    try:
        return get_model_state_dict(model)
    finally:
        for module in modules:
            del module.__dict__["_gives_shards"]


def _plain_name(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


def _device_type(model: nn.Module) -> str:
    """The type of device that the model's mesh communicates on."""
    meshes = (p.device_mesh for p in model.parameters() if isinstance(p, DTensor))
    return next((mesh.device_type for mesh in meshes), "cpu")


def _is_first(values: Iterable[Any]) -> bool:
    """Whether this rank is the first of those that shard the first sharded tensor of ``values``."""
    value = next((v for v in values if isinstance(v, DTensor)), None)
    if value is None:
        return dist.get_rank() == 0
    sharding = [i for i, p in enumerate(value.placements) if not p.is_replicate()]
    return value.device_mesh.get_local_rank(sharding[0] if sharding else 0) == 0


def _is_replicated(values: Iterable[Any]) -> bool:
    """Whether there are sharded tensors of which every rank has all."""
    found = [v for v in values if isinstance(v, DTensor)]
    return bool(found) and all(
        placement.is_replicate() or v.device_mesh.size(i) == 1
        for v in found
        for i, placement in enumerate(v.placements)
    )


def _whole(value: Any) -> Any:
    """A sharded tensor gathered from all ranks; anything else as it is."""
    if not isinstance(value, DTensor):
        return value
    moved: Any = value.detach().to(value.device_mesh.device_type)
    return moved.full_tensor()


def _part(value: Any, like: Any) -> Any:
    """This rank's part of a whole tensor, sharded like a parameter of the same shape."""
    if not isinstance(like, DTensor) or not torch.is_tensor(value):
        return value
    if isinstance(value, DTensor):
        return value.detach()
    if value.shape != like.shape:
        return value
    mesh = like.device_mesh
    # Every rank keeps its own values, nothing is communicated.
    whole = DTensor.from_local(value.detach(), mesh, [Replicate()] * mesh.ndim, run_check=False)
    return whole.redistribute(mesh, like.placements)


def _copied(value: Any, *, cpu: bool = False, made_from: Any = None) -> Any:
    """A value that shares no memory with others.

    Args:
        cpu: whether it is taken to the CPU.
        made_from: the sharded tensor that ``value`` was gathered from: on one rank, and without
            sharding, gathering hands out the shard itself, and of uneven shards a part of what
            was gathered.
    """
    if not torch.is_tensor(value):
        return value
    if cpu and value.device.type != "cpu":
        return value.detach().cpu()
    result = value.detach()
    if isinstance(made_from, DTensor):
        local, storage = made_from.to_local(), result.untyped_storage()
        padded = storage.nbytes() != result.numel() * result.element_size()
        if not padded and storage.data_ptr() != local.untyped_storage().data_ptr():
            return result
    return result.clone()


def _broadcast(
    state: dict[Any, Any], device: torch.device | str
) -> Iterator[tuple[Any, Any]]:
    """Rank 0's items, on every rank, one tensor after the other."""
    rank0 = dist.get_rank() == 0
    box: list[Any] = [
        {k: v.to("meta") if torch.is_tensor(v) else v for k, v in state.items()}
    ]
    dist.broadcast_object_list(box, src=0)
    for key, item in box[0].items():
        if not torch.is_tensor(item):
            yield key, item
            continue
        value = torch.empty(item.shape, dtype=item.dtype, device=device)
        if rank0:
            value.copy_(state[key])
        dist.broadcast(value, src=0)
        yield key, value


@contextmanager
def unsharded(model: nn.Module, *, recurse: bool = True) -> Iterator[None]:
    """Keep parameters gathered inside the block, for calls of the model such as ``generate``.

    They are in the dtype that forwards compute in, and changes to them are lost.

    Args:
        recurse: gather all units, not only the model's own.
    """
    _run_nothing(model)
    units = [
        module
        for module in (model.modules() if recurse else [model])
        if isinstance(module, FSDPModule)
    ]
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()


def _run_nothing(model: nn.Module) -> None:
    """Make the model the root of its units, which otherwise the first forward does.

    A method that calls a unit by itself would make that one a root, and forwards fail from then on.
    """
    name = "_run_nothing"
    setattr(model, name, lambda: None)
    register_fsdp_forward_method(model, name)
    getattr(model, name)()
    delattr(model, name)


@contextmanager
def full_params(
    model: nn.Module,
    *,
    recurse: bool = True,
    writeback: bool = True,
    rank0_only: bool = False,
    offload_to_cpu: bool = False,
    with_grads: bool = False,
) -> Iterator[None]:
    """Give every module whole parameters inside the block, in their storage dtype.

    Args:
        recurse: those of all units, not only of the model's own.
        writeback: keep changes: each rank writes its own slice of what it changed back.
        rank0_only: on the first of the ranks that shard them; others keep their shards.
        with_grads: gather gradients too, and write them back with the parameters.

    Raises:
        NotImplementedError: ``writeback`` together with ``rank0_only``, as in FSDP1.
    """
    if writeback and rank0_only:
        raise NotImplementedError("writeback=True and rank0_only=True is not supported")
    reshard_parameters(model)
    whole: dict[nn.Parameter, nn.Parameter] = {}
    places: list[tuple[nn.Module, str, nn.Parameter]] = []
    for module in model.modules() if recurse else _own_modules(model, set()):
        for name, parameter in module._parameters.items():
            if isinstance(parameter, nn.Parameter) and isinstance(parameter, DTensor):
                places.append((module, name, parameter))
                if parameter not in whole:
                    whole[parameter] = _gathered(
                        parameter, rank0_only, offload_to_cpu, with_grads
                    )
    try:
        for module, name, parameter in places:
            module._parameters[name] = whole[parameter]
        yield
    finally:
        reshard_parameters(model)  # units that ran inside may have stayed whole
        for module, name, parameter in places:
            module._parameters[name] = parameter
        if writeback:
            for sharded, changed in whole.items():
                _write_back(sharded, changed)
                if changed.grad is not None and sharded.grad is not None:
                    _write_back(sharded.grad, changed.grad)


def _gathered(
    parameter: Any, rank0_only: bool, offload_to_cpu: bool, with_grads: bool
) -> nn.Parameter:
    gradient = parameter.grad if with_grads else None
    full, full_gradient = _whole(parameter), _whole(gradient)
    if rank0_only and not _is_first([parameter]):
        return nn.Parameter(parameter.to_local().detach(), parameter.requires_grad)
    full = _copied(full, cpu=offload_to_cpu, made_from=parameter)
    result = nn.Parameter(full, requires_grad=parameter.requires_grad)
    result.grad = _copied(full_gradient, cpu=offload_to_cpu, made_from=gradient)
    return result


@torch.no_grad()
def _write_back(sharded: Any, changed: torch.Tensor) -> None:
    sharded.to_local().copy_(_part(changed, sharded).to_local())
