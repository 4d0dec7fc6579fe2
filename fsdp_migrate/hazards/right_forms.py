"""What is meant by arguments that functions of FSDP2's do not have: names from FSDP1, from
frameworks' settings, and from published guides."""

from __future__ import annotations

from collections.abc import Mapping

MESH = {"device_mesh": "mesh"}
POLICIES = {
    "mixed_precision": ("mp_policy", "MixedPrecisionPolicy"),
    "mixed_precision_policy": ("mp_policy", "MixedPrecisionPolicy"),
    "precision_policy": ("mp_policy", "MixedPrecisionPolicy"),
    "cpu_offload": ("offload_policy", "CPUOffloadPolicy"),
    "cpu_offload_policy": ("offload_policy", "CPUOffloadPolicy"),
    "offload": ("offload_policy", "CPUOffloadPolicy"),
}
"""Arguments of ``fully_shard`` that are another one if they are given its class."""
OPTIONS = "StateDictOptions"
STATES = {"state_dict": "model_state_dict", "model_state": "model_state_dict"}
OF_OPTIMIZERS = {
    "optimizer": "optimizers",
    "optim": "optimizers",
    "optimizer_state_dict": "optim_state_dict",
    "optim_state": "optim_state_dict",
}
PLACES = dict.fromkeys(
    ("path", "checkpoint_path", "checkpoint_dir", "ckpt_dir", "directory", "dir", "save_dir"),
    "checkpoint_id",
)
RENAMED: Mapping[str, Mapping[str, str]] = {
    "fully_shard": {**MESH, "model": "module"},
    "distribute_tensor": {"mesh": "device_mesh"},
    "init_device_mesh": {
        "dim_names": "mesh_dim_names",
        "mesh_dims": "mesh_dim_names",
        "device": "device_type",
        "shape": "mesh_shape",
    },
    "MixedPrecisionPolicy": {"cast_root_forward_inputs": "cast_forward_inputs"},
    "StateDictOptions": {"offload_to_cpu": "cpu_offload", "full": "full_state_dict"},
    "set_model_state_dict": STATES,
    "set_optimizer_state_dict": {**OF_OPTIMIZERS, "state_dict": "optim_state_dict"},
    "get_optimizer_state_dict": {"optimizer": "optimizers", "optim": "optimizers"},
    "get_state_dict": {"optimizer": "optimizers", "optim": "optimizers"},
    "set_state_dict": {**STATES, **OF_OPTIMIZERS},
    "save": PLACES,
    "load": PLACES,
    "async_save": PLACES,
}
"""Function, wrong name of an argument, right name."""

OPTION_FIELDS = frozenset(
    {
        *("full_state_dict", "cpu_offload", "ignore_frozen_params", "keep_submodule_prefixes"),
        *("strict", "broadcast_from_rank0", "flatten_optimizer_state_dict", "dsd_fqn_modifiers"),
    }
)
"""What ``StateDictOptions`` has, and no function that takes it."""
OPTION_ALIASES: Mapping[str, str] = {
    "broadcast": "broadcast_from_rank0",
    "offload_to_cpu": "cpu_offload",
}
TAKE_OPTIONS = frozenset(
    f"{verb}_{what}"
    for verb in ("get", "set")
    for what in ("model_state_dict", "optimizer_state_dict", "state_dict")
)

SPARE: Mapping[str, frozenset[str]] = {
    "fully_shard": frozenset({"use_orig_params", "limit_all_gathers"}),
    "CPUOffloadPolicy": frozenset({"offload_params"}),
}
"""Arguments that say ``True`` of what is always so: they are left out."""

BY_POSITION: Mapping[str, tuple[str, ...]] = {
    "init_device_mesh": ("", "", "mesh_dim_names"),
    "set_requires_gradient_sync": ("", "recurse"),
    "set_requires_all_reduce": ("", "recurse"),
    "set_reshard_after_backward": ("", "recurse"),
    "set_state_dict": ("", "", "model_state_dict", "optim_state_dict"),
    "save": ("", "checkpoint_id"),
    "load": ("", "checkpoint_id"),
    "async_save": ("", "checkpoint_id"),
}
"""What is given by position, in an order that leaves no doubt, and must be given by name."""

ADVICE: Mapping[str, Mapping[str, str]] = {
    "fully_shard": {
        "sharding_strategy": (
            "reshard_after_forward=True is FULL_SHARD and False SHARD_GRAD_OP; a mesh of two "
            "dimensions is HYBRID_SHARD"
        ),
        "auto_wrap_policy": "call fully_shard of each layer first, and of the model last",
        "mixed_precision": "mp_policy=MixedPrecisionPolicy(param_dtype=..., reduce_dtype=...)",
        "cpu_offload": "offload_policy=CPUOffloadPolicy()",
        "process_group": "mesh=init_device_mesh(...) in the place of a process group",
        "device_id": "leave it out, and give the mesh of the device's type",
        "sync_module_states": (
            "load the first rank's state with set_model_state_dict() and "
            "StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)"
        ),
        "forward_prefetch": "set_modules_to_forward_prefetch() of the units",
        "backward_prefetch": "leave it out; set_modules_to_backward_prefetch() chooses others",
        "ignored_modules": "ignored_params=set(m.parameters()), of the modules",
        "ignored_states": "ignored_params=set(...), of the parameters",
        "param_init_fn": "build on the meta device, shard, to_empty() and initialise",
        "use_orig_params": "leave it out: FSDP2 always keeps the original parameters",
        "limit_all_gathers": "leave it out: FSDP2 always does it",
    },
    "CPUOffloadPolicy": {"offload_params": "leave it out: the policy itself says it"},
    "MixedPrecisionPolicy": {"buffer_dtype": "leave it out, and cast the buffers"},
    "StateDictOptions": {
        "rank0_only": (
            "leave it out: with full_state_dict=True and cpu_offload=True only rank 0 has a state"
        ),
    },
}
"""What to write in words."""

PATHS = frozenset(
    {"os.path.join", "pathlib.Path", "pathlib.PosixPath", "builtins.str", "os.fspath"}
)
"""What makes a path."""
ONE_SETTING = frozenset(
    f"set_{name}"
    for name in (
        *("requires_gradient_sync", "requires_all_reduce", "is_last_backward"),
        *("reshard_after_backward", "reshard_after_forward", "unshard_in_backward"),
        *("modules_to_forward_prefetch", "modules_to_backward_prefetch"),
    )
)
"""Methods that must be given one thing."""
METHODS = frozenset({"unshard", "reshard", "to_local", "full_tensor"})
"""Methods of FSDP2's whose names others have as well."""
DCP: Mapping[str, str] = {
    name: f"state_dict, {extra}*, checkpoint_id=..., planner=..., process_group=..., no_dist=..., "
    + more
    for name, extra, more in (
        ("save", "", "storage_writer=..., use_collectives=..."),
        ("load", "", "storage_reader=..."),
        (
            "async_save",
            "",
            "storage_writer=..., async_checkpointer_type=..., async_stager=..., "
            "use_collectives=...",
        ),
    )
}
"""The parameters of ``torch.distributed.checkpoint``'s functions, those of all releases in one."""
