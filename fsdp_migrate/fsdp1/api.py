"""What FSDP1's public surface is: names, where they may be imported from, argument order.

Read from ``torch/distributed/fsdp`` of torch 2.4 to 2.15, in which none of it changed.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from fsdp_migrate import runtime

PACKAGE: Final = "torch.distributed.fsdp"
EARLIER_PACKAGE: Final = "torch.distributed._fsdp"
FSDP: Final = "FullyShardedDataParallel"


def _arguments_of_shard() -> tuple[str, ...]:
    """The parameters of ``shard`` in the support module, but for its own, which are keyword-only.

    They are read as text: the module imports torch.
    """
    library = Path(runtime.__file__).with_name("fsdp2_support.py").read_text(encoding="utf-8")
    head = library.partition("\ndef shard(\n")[2].partition("\n    *,\n")[0]
    return tuple(re.findall(r"^ {4}(\w+):", head, re.MULTILINE))


CONSTRUCTOR_ARGUMENTS: Final = _arguments_of_shard()
"""Positional order of ``FullyShardedDataParallel.__init__`` after ``self``, and of ``shard``."""

EARLIER_NAMES: Final = {"ignored_parameters": "ignored_states"}
"""What torch 2.0 called arguments that have another name since."""

STATICS: Final = frozenset(
    {
        "state_dict_type",
        "set_state_dict_type",
        "get_state_dict_type",
        "summon_full_params",
        "fsdp_modules",
        "optim_state_dict",
        "optim_state_dict_to_load",
        "full_optim_state_dict",
        "sharded_optim_state_dict",
        "scatter_full_optim_state_dict",
        "shard_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
        "rekey_optim_state_dict",
    }
)
"""Static methods that take the model as an argument."""

STATE_FIRST: Final = frozenset(
    {
        "scatter_full_optim_state_dict",
        "shard_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
        "rekey_optim_state_dict",
    }
)
"""Statics whose first argument is the optimizer state, the model being the second."""

METHODS: Final = frozenset(
    {
        "clip_grad_norm_",
        "no_sync",
        "check_is_root",
        "register_comm_hook",
        "module",
        "_fsdp_wrapped_module",
        "_handle",
        "_handles",
        "_all_handles",
        "_has_params",
        "_flat_param",
        "compute_device",
        "mixed_precision",
        "process_group",
        "sharding_strategy",
        "training_state",
        "params",
    }
)
"""Attributes of an FSDP1 model that an FSDP2 model has not, or means differently."""

ONLY_MODELS: Final = frozenset({"clip_grad_norm_", "no_sync", "check_is_root"}) | STATICS
"""Methods that next to nothing else has: who has one called may be an FSDP1 model."""

UNMISTAKABLE: Final = frozenset(
    {"_handle", "_handles", "_all_handles", "_has_params", "_fsdp_wrapped_module"}
)
"""Those that nothing else has: FSDP1's, also on an object nothing is known about."""

FIELDS: Final = frozenset(
    {
        "rank",
        "world_size",
        "backward_prefetch",
        "cpu_offload",
        "forward_prefetch",
        "limit_all_gathers",
        "_use_orig_params",
        "_is_root",
        "_exec_order_data",
        "_fully_sharded_module_to_handle",
        "_ignored_params",
        "_state_dict_type",
    }
)
"""What an FSDP1 model keeps of its settings, under names that other objects have as well."""

FLAT_FIELDS: Final = frozenset(
    {
        "_fqns",
        "_full_param_padded",
        "_is_flat_param",
        "_is_grad_none_mask",
        "_is_padding_mask",
        "_local_shard",
        "_numels",
        "_numels_with_padding",
        "_padded_unsharded_size",
        "_param_infos",
        "_saved_grad_shard",
        "_shard_numel_padded",
        "_shard_param_infos",
        "_shared_param_infos",
        "_unpadded_unsharded_size",
    }
)
"""What FSDP1 keeps with its flat parameters."""

FORWARD: Final = "forward"
"""Called by itself it runs in FSDP1's wrapper, and without FSDP2's hooks."""

STATE_METHODS: Final = frozenset({"state_dict", "load_state_dict", "apply", "save_pretrained"})
"""``nn.Module`` methods whose result changes meaning when FSDP1 becomes FSDP2."""

INSIDE_MODELS: Final = frozenset(
    {
        "buffers",
        "children",
        "modules",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "register_forward_hook",
        "register_forward_pre_hook",
    }
)
"""``nn.Module`` methods that give what changes its kind when FSDP1 becomes FSDP2, or go into it."""

OF_MODELS: Final = METHODS | STATE_METHODS | {FORWARD}
"""All that an FSDP1 model is asked for by name."""

_API = {
    "BackwardPrefetch",
    "CPUOffload",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "LocalOptimStateDictConfig",
    "LocalStateDictConfig",
    "MixedPrecision",
    "OptimStateDictConfig",
    "ShardedOptimStateDictConfig",
    "ShardedStateDictConfig",
    "ShardingStrategy",
    "StateDictConfig",
    "StateDictSettings",
    "StateDictType",
}
_FLAT = {"FlatParameter", "OptimStateKeyType"}
_POLICIES = {
    "CustomPolicy",
    "ModuleWrapPolicy",
    "_or_policy",
    "_module_wrap_policy",
    "always_wrap_policy",
    "enable_wrap",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "wrap",
}
POLICIES: Final = frozenset(_POLICIES)
SETTINGS: Final = frozenset(_API)
ENUMS: Final = frozenset({"ShardingStrategy", "BackwardPrefetch", "StateDictType"})

# FSDP2's own names live in the same package; they are the destination, never a site.
FSDP2: Final = frozenset(
    {
        "CPUOffloadPolicy",
        "DataParallelMeshDims",
        "FSDPModule",
        "MixedPrecisionPolicy",
        "OffloadPolicy",
        "UnshardHandle",
        "fully_shard",
        "register_fsdp_forward_method",
        "share_comm_ctx",
    }
)

_LOCATIONS: dict[str, str] = {}
for _name in {FSDP, *_FLAT, *_API}:
    _LOCATIONS[f"{PACKAGE}.{_name}"] = _name
    _LOCATIONS[f"{PACKAGE}.fully_sharded_data_parallel.{_name}"] = _name
for _name in _API:
    _LOCATIONS[f"{PACKAGE}.api.{_name}"] = _name
for _name in _FLAT:
    _LOCATIONS[f"{PACKAGE}.flat_param.{_name}"] = _name
    _LOCATIONS[f"{PACKAGE}._flat_param.{_name}"] = _name
for _name in _POLICIES:
    _LOCATIONS[f"{PACKAGE}.wrap.{_name}"] = _name
for _name in ("CustomPolicy", "ModuleWrapPolicy"):
    _LOCATIONS[f"{PACKAGE}.fully_sharded_data_parallel.{_name}"] = _name
_LOCATIONS[f"{PACKAGE}.sharded_grad_scaler.ShardedGradScaler"] = "ShardedGradScaler"
# Names that are no module's as well.
_PUBLIC = frozenset(n for n in _LOCATIONS.values() if not n.startswith("_")) - {"wrap"}

_LEGACY_MODULES = (
    f"{PACKAGE}._common_utils",
    f"{PACKAGE}._debug_utils",
    f"{PACKAGE}._dynamo_utils",
    f"{PACKAGE}._exec_order_utils",
    f"{PACKAGE}._flat_param",
    f"{PACKAGE}._fsdp_extensions",
    f"{PACKAGE}._init_utils",
    f"{PACKAGE}._limiter_utils",
    f"{PACKAGE}._optim_utils",
    f"{PACKAGE}._runtime_utils",
    f"{PACKAGE}._shard_utils",
    f"{PACKAGE}._state_dict_utils",
    f"{PACKAGE}._trace_utils",
    f"{PACKAGE}._traversal_utils",
    f"{PACKAGE}._unshard_param_utils",
    f"{PACKAGE}._wrap_utils",
    f"{PACKAGE}.api",
    f"{PACKAGE}.flat_param",
    f"{PACKAGE}.fully_sharded_data_parallel",
    f"{PACKAGE}.sharded_grad_scaler",
    f"{PACKAGE}.wrap",
)
# They list in ``__all__`` what a star takes.
_LISTING = frozenset(f"{PACKAGE}.{n}" for n in ("api", "fully_sharded_data_parallel", "wrap"))
_OTHER = {
    "torch.distributed.checkpoint.optimizer.load_sharded_optimizer_state_dict": (
        "load_sharded_optimizer_state_dict"
    ),
    "torch.distributed.checkpoint.load_sharded_optimizer_state_dict": (
        "load_sharded_optimizer_state_dict"
    ),
}


# One of these is in every name of FSDP1's.
WORDS = ("fsdp", "FSDP", "FullySharded", "load_sharded_optimizer_state_dict")


PRIVATE = "private:"


@cache
def canonical(qualified: str) -> str | None:
    """FSDP1's own short name for a dotted import path, with what follows it.

    ``torch.distributed.fsdp.api.ShardingStrategy.FULL_SHARD`` -> ``ShardingStrategy.FULL_SHARD``;
    private modules of FSDP1 come back as ``private:<module>.<name>``; None for anything else,
    FSDP2's names among them.
    """
    for known, short in _OTHER.items():
        if qualified == known:
            return short
    if qualified.startswith(f"{EARLIER_PACKAGE}."):
        qualified = qualified.replace(EARLIER_PACKAGE, PACKAGE)
    if not qualified.startswith(PACKAGE):
        return None
    parts = qualified.split(".")
    for end in range(4, min(len(parts), 5) + 1):
        short_name = _LOCATIONS.get(".".join(parts[:end]))
        if short_name is not None:
            again = parts[end : end + 1] == [short_name]  # the class is taken for its module
            return ".".join([short_name, *parts[end + again :]])
    for start in reversed(range(3, min(len(parts), 5))):
        if parts[start] in _PUBLIC and not _may_have_more(".".join(parts[:start])):
            return ".".join(parts[start:])  # torch has it elsewhere: see absent()
    for module in _LEGACY_MODULES:
        if qualified.startswith(f"{module}."):
            return f"{PRIVATE}{qualified.removeprefix(f'{PACKAGE}.')}"
    return None


def absent(qualified: str) -> str:
    """What a dotted path leads to that no torch from 2.4 to 2.15 has: a name of the package, or one
    of FSDP1's names in a module that has it not; nothing where torch may have it."""
    if not qualified.startswith(f"{PACKAGE}."):
        return ""
    first, _, rest = qualified.removeprefix(f"{PACKAGE}.").partition(".")
    module = f"{PACKAGE}.{first}"
    if first.startswith("_") or first in FSDP2:
        return ""
    if module in _LOCATIONS:
        return module if rest == first else ""  # a class is no module
    if module not in _LEGACY_MODULES:
        return module
    name = rest.partition(".")[0]
    known = f"{module}.{name}" in _LOCATIONS or name not in _PUBLIC or _may_have_more(module)
    return "" if known else f"{module}.{name}"


def may_give(module: str, name: str) -> bool:
    """Whether a star import of a module of torch's may bind a name."""
    return module not in _LISTING or (name in _PUBLIC | POLICIES and not name.startswith("_"))


def place_of(short: str) -> str:
    """The module from which FSDP1's public name is to be imported."""
    return next(where for where, name in _LOCATIONS.items() if name == short).rpartition(".")[0]


def _may_have_more(module: str) -> bool:
    """Whether a module is private, which has names of others that no one counts."""
    return module.removeprefix(f"{PACKAGE}.").startswith("_")


def without_mark(canonical: str) -> str:
    """One of :func:`canonical`'s names, without what tells that it is private to FSDP1."""
    return canonical.removeprefix(PRIVATE)


def is_in_package(qualified: str) -> bool:
    """Whether a dotted path is ``torch.distributed.fsdp``, or leads into it."""
    return f"{qualified}.".startswith((f"{PACKAGE}.", f"{EARLIER_PACKAGE}."))


def is_same(qualified: str, short: str) -> bool:
    """Whether a dotted path is that of what FSDP1 calls ``short``, wherever torch has it."""
    last = short.rpartition(".")[2]
    return qualified.startswith("torch.") and qualified.rpartition(".")[2] == last


def is_alike(qualified: str) -> bool:
    """Whether a dotted path that is not torch's ends in a name that FSDP's class goes by, or in
    that of a function that wraps with it."""
    if qualified.startswith("torch."):
        return False
    last = qualified.rpartition(".")[2]
    return last.endswith((FSDP, "FSDP")) or last in WRAPPING or qualified in ACCELERATING


# They give models of their own, with the methods of FSDP1's.
ACCELERATING = frozenset({"torchacc.accelerate"})
# The functions that wrap with FSDP in the libraries that had it before torch, and in torch.
WRAPPING = frozenset({"auto_wrap", "wrap"})


def is_module(qualified: str) -> bool:
    """Whether a dotted path is ``torch.distributed.fsdp`` or one of FSDP1's modules in it."""
    return qualified == PACKAGE or qualified in _LEGACY_MODULES


def is_fsdp2_class(qualified: str) -> bool:
    """Whether a dotted import path is that of ``FSDPModule``."""
    return qualified in _FSDP2_CLASS


def same_names(qualified: str) -> tuple[str, ...]:
    """The dotted paths of what one names, that one first: ``FSDPModule`` has several."""
    return (
        (qualified, *sorted(_FSDP2_CLASS - {qualified}))
        if is_fsdp2_class(qualified)
        else (qualified,)
    )


_FSDP2_CLASS: Final = frozenset(
    f"{package}.FSDPModule"
    for package in (
        PACKAGE,
        "torch.distributed._composable.fsdp",
        f"{PACKAGE}._fully_shard",
        f"{PACKAGE}._fully_shard._fully_shard",
    )
)
