"""composer: ``fsdp_config`` in YAML of llm-foundry and its like, ``parallelism_config`` in Python.

Read in composer 0.32. A file does not say the version: a program that gives the Trainer a
dictionary takes version 2 where ``FSDP_VERSION=2`` is in its environment, and keeps of the
dictionary what ``FSDP2Config`` has. Under version 1 keys that it does not know are ignored.
"""

from __future__ import annotations

from fsdp_migrate.configurations.frameworks.words import (
    RESHARDING,
    left,
    review,
    rewritten,
    stays,
    strategy,
    truth,
    unknown,
)
from fsdp_migrate.configurations.settings import Change, Setting, Settings, Value

HAS_VERSION_2 = (0, 31)
SECTION = "fsdp_config"
RESHARD, STATE, PRECISION = "reshard_after_forward", "state_dict_type", "mixed_precision"
KEPT = frozenset({
    RESHARD, "activation_checkpointing", "activation_cpu_offload", STATE,
    "load_monolith_rank0_only", PRECISION, "verbose", "device_mesh",
})  # fmt: skip
"""What ``FSDP2Config`` takes."""

DEFAULTS: dict[str, Value] = {
    "activation_checkpointing_reentrant": True, "auto_wrap": True, "backward_prefetch": "",
    "backward_prefetch_limit": 1, "cpu_offload": False, "data_parallel_shard_degree": -1,
    "data_parallel_replicate_degree": None, "forward_prefetch": False,
    "forward_prefetch_limit": 1, "ignored_modules": None, "keep_low_precision_grads": False,
    "limit_all_gathers": True, "load_planner": None, "min_params": "", "process_group": None,
    "save_planner": None, "sharded_ckpt_prefix_dir": "ep{epoch}-ba{batch}",
    "sharding_strategy": "FULL_SHARD", "sync_module_states": False, "te_checkpoint_wrapper": False,
    "te_shard_fp8_weight": False, "use_orig_params": True, "flatten_parameters": True,
    "load_fsdp_monolith_rank0_only": False,
}  # fmt: skip
"""What version 1 takes and version 2 ignores, with version 1's defaults."""

SAME = frozenset({
    "backward_prefetch", "backward_prefetch_limit", "forward_prefetch", "forward_prefetch_limit",
    "limit_all_gathers", "min_params", "flatten_parameters",
})  # fmt: skip
"""Of those, what changes no number."""

SWITCH = (
    "composer takes version 2 where FSDP_VERSION=2 is in the environment of the program, from "
    "0.31 on; without it this trains version 1, with FULL_SHARD whatever is written here"
)
STRATEGY = "version 2 says of parameters whether they stay after the forward"
TOO_OLD = "composer before 0.31 has no version 2, and ignores what is written for it"
RAISE = "raise mosaicml to 0.31 or later, and run again"
BUFFERS = (
    "version 1 also casts buffers to the 16-bit dtype; version 2 leaves them as they are, so a "
    "model with float buffers computes more exactly than before"
)
SYNC = (
    "version 1 began with rank 0's weights; version 2 sends them only where other ranks have none "
    "(init_device: mixed), and else begins with each rank's own, which are the same where a seed "
    "is set before the model is made"
)
ORIGINAL = (
    "version 1 gave the optimizer flat parameters of whole units, version 2 gives it the model's "
    "own: what the optimizer does by parameter, it does for each"
)
REENTRANT = (
    "version 2 has the checkpoints that are not reentrant: of a model that needs the others, write "
    "them in the model"
)
MESH = (
    "composer 0.32 makes the mesh of version 2 itself, whatever device_mesh is: stay with version "
    "1, or give the Trainer a subclass of FSDP2Config that has data_parallel_replicate_degree and "
    "data_parallel_shard_degree as attributes of the class"
)
LEFT = {
    "auto_wrap": ("version 2 shards each part of the model", "take the parts out in fsdp_wrap_fn"),
    "cpu_offload": ("composer offloads under neither version", "remove it"),
    "data_parallel_shard_degree": (
        "version 2 ignores it, and shards over all ranks",
        f"remove it where it is the number of all ranks. {MESH}",
    ),
    "data_parallel_replicate_degree": (
        "version 2 ignores it, and shards over all ranks",
        f"remove it where it is 1. {MESH}",
    ),
    "ignored_modules": ("version 2 ignores it, and shards them", "let fsdp_wrap_fn say it"),
    "keep_low_precision_grads": ("version 2 keeps gradients in the parameters' dtype", "remove it"),
    "load_fsdp_monolith_rank0_only": (
        "it is an old name, which version 2 ignores",
        "write load_monolith_rank0_only",
    ),
    "load_planner": ("version 2 ignores it", "give the planner to the program's own loading"),
    "process_group": ("version 2 ignores it, and shards over all ranks", MESH),
    "save_planner": ("version 2 ignores it", "give the planner to the program's own saving"),
    "sharded_ckpt_prefix_dir": (
        "version 2 has ep{epoch}-ba{batch} alone",
        "remove it, and look for checkpoints there",
    ),
    "te_checkpoint_wrapper": ("version 2 ignores it", "remove it, or stay with version 1"),
    "te_shard_fp8_weight": ("version 2 ignores it", "remove it, or stay with version 1"),
}
NO_COUNTERPART = {
    "NO_SHARD": ("version 2 has nothing for NO_SHARD", "leave fsdp_config out: it is DDP then"),
    "HYBRID_SHARD": ("version 2 ignores the strategy, and shards over all ranks", MESH),
    "HYBRID_SHARD_ZERO2": ("version 2 ignores the strategy, and shards over all ranks", MESH),
}


def migrate(settings: Settings, installed: tuple[int, ...] = ()) -> list[Change]:
    """What becomes of the block of one file, whose keys are called ``fsdp_config.x``.

    ``installed`` is the release of mosaicml that the project pins, empty where it pins none.
    """
    section = settings.get(SECTION)
    if section is not None and section.unknown:
        return [left(f"fsdp_config is not known here: {section.unknown}", SECTION)]
    if section is not None or _of(RESHARD) in settings:
        return []  # none, or version 2's already
    if installed and installed < HAS_VERSION_2:
        return [left(TOO_OLD, "", RAISE)]
    changes = keys({n.removeprefix(f"{SECTION}."): s for n, s in settings.items() if _is_key(n)})
    return [_prefixed(change) for change in changes]


def keys(settings: Settings, *, switch: bool = True) -> list[Change]:
    """What becomes of the keys, by their own names; the strategy comes first.

    ``switch``: whether the version is chosen elsewhere, which is said.
    """
    found = unknown(settings, *(name for name in settings if name in DEFAULTS))
    if found:
        return found
    changes = [_strategy(settings, switch)]
    if STATE not in settings:
        changes.append(rewritten("version 1's default is written out", "", (STATE, "full")))
    for name, setting in settings.items():
        if name in DEFAULTS and name != "sharding_strategy":
            changes.append(_dead(name, setting))
    precision = settings.get(PRECISION)
    if precision is not None and str(precision.value).upper() != "FULL":
        changes.append(stays(BUFFERS, precision))
    return changes


def _strategy(settings: Settings, switch: bool) -> Change:
    setting = settings.get("sharding_strategy")
    old = "" if setting is None else setting.name
    named = strategy("FULL_SHARD" if setting is None else setting.value)
    if named is None:
        return left(f"{setting.value if setting else ''} is no strategy of FSDP1", old)
    if named in NO_COUNTERPART:
        message, help_ = NO_COUNTERPART[named]
        return left(message, old, help_)
    notes = [SWITCH] * switch + [BUFFERS] * (PRECISION not in settings)
    new = (RESHARD, RESHARDING[named])
    return review("; ".join(notes), old, new) if notes else rewritten(STRATEGY, old, new)


def _dead(name: str, setting: Setting) -> Change:
    default = DEFAULTS[name]
    given = setting.value
    if isinstance(default, bool):
        given = truth(given)
    if name in SAME or given == default or given is None:
        return rewritten("FSDP2 does without it", setting.name)
    if name == "sync_module_states":
        return review(SYNC, setting.name)
    if name == "use_orig_params":
        return review(ORIGINAL, setting.name)
    if name == "activation_checkpointing_reentrant":
        return rewritten("version 2 has no other", setting.name)
    message, help_ = LEFT[name]
    return left(message, setting.name, help_)


def _is_key(name: str) -> bool:
    return name.startswith(f"{SECTION}.")


def _of(key: str) -> str:
    return f"{SECTION}.{key}"


def _prefixed(change: Change) -> Change:
    """A change by the names that a file's settings have."""
    new = change.new
    if new is not None and not _is_key(new[0]):
        new = _of(new[0]), new[1]
    return Change(change.outcome, change.message, change.old, new, change.help)
