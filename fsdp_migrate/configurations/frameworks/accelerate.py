"""accelerate: YAML, ``accelerate launch --fsdp_*`` and ``FSDP_*`` variables.

Settings are named as the flags of ``accelerate launch`` are: ``fsdp_sharding_strategy``, also for a
key of the block ``fsdp_config:`` with or without its prefix and for ``FSDP_SHARDING_STRATEGY``;
``use_fsdp`` for the flag (value None) and for ``ACCELERATE_USE_FSDP`` (value its text);
``parallelism_config_dp_replicate_size`` for the key of the block ``parallelism_config:``, for
``--parallelism_config_dp_replicate_size`` and ``PARALLELISM_CONFIG_DP_REPLICATE_SIZE``; and
``distributed_type``, ``num_machines``, ``num_processes``, ``mixed_precision`` as they stand.

What accelerate does with each was measured on 1.15.0: ``tests/configurations/`` runs it, and
``docs/configurations.md`` is what came out.
"""

from __future__ import annotations

from fsdp_migrate.configurations.frameworks.words import (
    BUFFERS,
    BY_SIZE,
    FALSE,
    RESHARDING,
    TO_CLASSES,
    dropped,
    left,
    review,
    rewritten,
    stays,
    strategy,
    text,
    to_version_2,
    truth,
    unknown,
    version,
    whole,
)
from fsdp_migrate.configurations.settings import Change, Setting, Settings

VERSION = "fsdp_version"
STRATEGY = "fsdp_sharding_strategy"
RESHARD = "fsdp_reshard_after_forward"
STATE = "fsdp_state_dict_type"
LOADING = "fsdp_cpu_ram_efficient_loading"
SYNC = "fsdp_sync_module_states"
WRAP = "fsdp_auto_wrap_policy"
REPLICATE = "parallelism_config_dp_replicate_size"
SHARD = "parallelism_config_dp_shard_size"

DEAD = (
    "fsdp_backward_prefetch",
    "fsdp_backward_prefetch_policy",
    "fsdp_forward_prefetch",
    "fsdp_limit_all_gathers",
)
"""What version 2 has nothing for, beside the strategy, SYNC and PARAMETERS."""

PARAMETERS = "fsdp_use_orig_params"
FLAT = (
    "with false, the optimizer is made after prepare(model), or trains nothing; version 2 stops "
    "unless model and optimizer go through one prepare()"
)
TOGETHER = (
    "version 2 stops unless one prepare() takes the model together with its optimizer, which may "
    "be made before it, and no other model"
)

NO_SHARD = (
    "NO_SHARD is not FSDP2's: accelerate's converter makes SHARD_GRAD_OP of it. Whole models on "
    "every rank are DDP's, which differs under mixed precision, for unused parameters and in its "
    "checkpoints"
)
TO_DDP = "`distributed_type: MULTI_GPU` without `fsdp_config` (or --multi_gpu) trains with DDP"
LOCAL = (
    "FSDP2 has no local state dict: accelerate stops. A checkpoint of that kind is loaded by "
    "version 1 alone"
)
TO_OTHER_STATE = (
    "load the old checkpoint once with version 1 and save it as FULL_STATE_DICT, then write "
    "`fsdp_state_dict_type: SHARDED_STATE_DICT`"
)


WEIGHTS = (
    f"version 1 begins with rank 0's weights; version 2 does so only under {LOADING}, and "
    "otherwise with each rank's own"
)
SEED = f"seed before the model is made, or write {LOADING}: true"
PREPARED = "prepare"  # where the program beside it calls it for a part of what belongs together
STORAGE = "quant_storage"  # of packed weights, as the program has it
DTYPES = {"BF16": "bfloat16", "FP16": "float16"}
PACKED = (
    "quantised weights are stored as {}, and both versions cast them to {}, which changes their "
    "bytes: use one dtype for both"
)
HAS_VERSION_2, HAS_SIZES = (1, 6), (1, 10)
"""Releases of accelerate."""


def migrate(settings: Settings, installed: tuple[int, ...] = ()) -> list[Change]:
    """What becomes of the settings of one run of accelerate.

    ``installed`` is the release that the project pins, empty where it pins none.
    """
    if not is_fsdp(settings):
        return []
    found = unknown(settings, "distributed_type", "use_fsdp", VERSION)
    if found:
        return found
    now = version(settings, VERSION)
    if now is None:
        value = settings[VERSION].value
        return [left(f"{VERSION} is {value}: accelerate knows 1 and 2", VERSION)]
    if installed and installed < HAS_VERSION_2:
        message = "the accelerate that the project pins has no version 2"
        if now == 2:
            message += ", does not read it, and trains FSDP1"
        where = VERSION if VERSION in settings else ""
        return [left(message, where, help="raise accelerate to 1.6 or later")]
    if now == 2:
        return _sharding_of_version_2(settings) + _version_1_keys(settings) + _state(settings, 2)
    return [
        _to_version_2(settings),
        *_too_old(settings, installed),
        *_sharding(settings),
        *_state(settings, 1),
        *_weights(settings),
        *_wrapping(settings),
        *_parameters(settings),
        *_buffers(settings),
        *dropped(settings, *DEAD),
    ]


def _to_version_2(settings: Settings) -> Change:
    """Version 2, for review where it stops at how the program prepares its parts."""
    change, prepared = to_version_2(settings, VERSION), settings.get(PREPARED)
    if prepared is None:
        return change
    return review(f"{prepared.value}: {TOGETHER}", change.old, change.new)


def _too_old(settings: Settings, installed: tuple[int, ...]) -> list[Change]:
    """Sizes of a mesh, in a release that has none."""
    setting = settings.get(STRATEGY)
    named = strategy(setting.value) if setting else None
    if not named or not named.startswith("HYBRID") or not installed or installed >= HAS_SIZES:
        return []
    return [left(f"{named} needs sizes, which accelerate has from 1.10 on", "", "raise accelerate")]


def is_fsdp(settings: Settings) -> bool:
    """Whether a run with FSDP has these settings: not those that another type leaves over."""
    if "use_fsdp" in settings:
        value = settings["use_fsdp"].value
        return value is None or str(value).strip().lower() not in FALSE
    if "distributed_type" in settings:
        kind = settings["distributed_type"]
        return bool(kind.unknown) or text(kind).rpartition(".")[2] == "FSDP"
    return any(name.startswith("fsdp_") for name in settings)


def _launched(settings: Settings) -> bool:
    """Whether ``accelerate launch`` fills in what is not set, rather than the plugin."""
    flag = settings.get("use_fsdp")
    return "distributed_type" in settings or (flag is not None and flag.value is None)


def _sharding(settings: Settings) -> list[Change]:
    """Version 1's strategy: ``fsdp_reshard_after_forward``, and the mesh of HYBRID_SHARD."""
    found = unknown(settings, STRATEGY, RESHARD)
    if found:
        return found
    written, alias = settings.get(STRATEGY), settings.get(RESHARD)
    named = strategy(written.value) if written else "FULL_SHARD"
    if written and named is None:
        return [left(f"{written.value} is no sharding strategy of FSDP1", STRATEGY)]
    assert named is not None
    if alias and written and _meant(alias) != named:
        return [
            left(
                f"{STRATEGY} says {written.value} and {RESHARD} says {alias.value}: version 1 "
                "goes by the first, version 2 by the second",
                STRATEGY,
                help=f"keep the one that is meant, as {RESHARD}: true or false",
            )
        ]
    if named == "NO_SHARD":
        return [left(NO_SHARD, STRATEGY, help=TO_DDP)]
    place = RESHARD if alias else STRATEGY if written else ""
    new = (RESHARD, RESHARDING[named])
    rest = [rewritten(f"{RESHARD} says it", STRATEGY)] if alias and written else []
    if named.startswith("HYBRID"):
        return [*_hybrid(settings, named, place, new), *rest]
    if alias and not written and _meant(alias) != named:
        message = (
            f"version 1 ignores {RESHARD} and has trained with FULL_SHARD, which is true in "
            f"version 2; it says {alias.value}"
        )
        return [review(message, place, new, help=_instead(alias))]
    message = f"{named} is {RESHARD}: {str(new[1]).lower()}"
    return [rewritten(message, place, new), *rest]


def _meant(alias: Setting) -> str | None:
    """The strategy that ``fsdp_reshard_after_forward`` means, where it is a name or a truth."""
    value = alias.value
    if isinstance(value, bool) or (isinstance(value, str) and not value.strip().isdigit()):
        meant = truth(value)
        if meant is not None:
            return "FULL_SHARD" if meant else "SHARD_GRAD_OP"
    return strategy(value)


def _instead(setting: Setting) -> str:
    """What to write for the strategy that a setting names without being in force."""
    named = _meant(setting)
    if named == "NO_SHARD":
        return TO_DDP
    if named is None:
        return ""
    wanted = f"for {named} write {RESHARD}: {str(RESHARDING[named]).lower()}"
    if named.startswith("HYBRID"):
        return f"{wanted}, and {_block()}"
    return f"{wanted}, which keeps more memory" if named == "SHARD_GRAD_OP" else wanted


def _block(replicate: str = "<machines>", shard: str = "<processes of one machine>") -> str:
    return f"parallelism_config with {REPLICATE}: {replicate} and {SHARD}: {shard}"


def _hybrid(settings: Settings, named: str, place: str, new: tuple[str, bool]) -> list[Change]:
    """HYBRID_SHARD shards over the devices of one machine: sizes where they are known."""
    says = f"{RESHARD}: {str(new[1]).lower()}"
    reshard = rewritten(f"{named} is {says} on two dimensions", place, new)
    if REPLICATE in settings and SHARD in settings:
        return [reshard]
    machines, processes = (
        whole(settings[name].value) if name in settings and not settings[name].unknown else None
        for name in ("num_machines", "num_processes")
    )
    if not machines or not processes or processes % machines:
        message = (
            f"{named} shards over the devices of one machine and replicates over machines: "
            "version 2 needs both numbers, and they do not stand here"
        )
        help = f"{says}, and {_block()}"
        return [left(message, place or STRATEGY, help=help)]
    size = processes // machines
    if machines == 1:
        message = f"{named} on one machine is {says}"
        help = f"with more machines it also needs {_block()}"
        return [review(message, place, new, help=help)]
    if size == 1:
        return [left(f"{named} with one process a machine shards nothing: {NO_SHARD}", place)]
    told = (
        f"{named} shards over the {size} processes of each of {machines} machines, "
        "one a device, as num_processes and num_machines say"
    )
    sizes = [review(told, "", (REPLICATE, machines)), review(told, "", (SHARD, size))]
    flag = [rewritten("turns the sizes on", "", ("use_parallelism_config", True))]
    return [reshard, *sizes, *(flag if "use_fsdp" in settings else [])]


def _state(settings: Settings, now: int) -> list[Change]:
    """The kind of checkpoints: version 1's default is written out, its local kind is refused."""
    setting = settings.get(STATE)
    if setting is None:
        message = "version 1's default; version 2's is SHARDED_STATE_DICT"
        return [rewritten(message, "", (STATE, "FULL_STATE_DICT"))] if now == 1 else []
    if setting.unknown:
        return [stays(f"LOCAL_STATE_DICT stops version 2: {setting.unknown}", setting)]
    if text(setting) in {"LOCAL_STATE_DICT", "2"}:
        return [left(LOCAL, STATE, help=TO_OTHER_STATE)]
    return []


def _weights(settings: Settings) -> list[Change]:
    """``fsdp_sync_module_states``: version 2 has rank 0's weights only where it also loads them."""
    sync, loading = settings.get(SYNC), settings.get(LOADING)
    synced, loads = _truth(settings, SYNC), _truth(settings, LOADING)
    if loading and loading.unknown and synced is not False:
        return [*dropped(settings, SYNC), stays(f"{WEIGHTS}: {loading.unknown}", loading, SEED)]
    if loads is None or (loads and (synced or not _launched(settings))):
        return dropped(settings, SYNC)  # without the launcher, loading turns it on by itself
    if loads:  # sync is False, or not known
        return _unsynchronised(settings, synced)
    if synced is False:
        return dropped(settings, SYNC)
    return [review(WEIGHTS, SYNC, help=SEED)] if sync else [stays(WEIGHTS, settings[LOADING], SEED)]


def _truth(settings: Settings, name: str) -> bool | None:
    """What a setting is that ``accelerate launch`` turns on where nobody says otherwise."""
    setting = settings.get(name)
    if setting is None:
        return _launched(settings)
    return None if setting.unknown else truth(setting.value)


def _unsynchronised(settings: Settings, synced: bool | None) -> list[Change]:
    """``fsdp_sync_module_states: false`` while rank 0 alone loads the weights."""
    sync = settings[SYNC]
    if synced is None:
        return [review(f"{LOADING} decides in version 2, which is on", SYNC)]
    if isinstance(sync.value, str):  # for accelerate launch every text is true
        return dropped(settings, SYNC)
    if LOADING not in settings:
        message = "without rank 0's weights nobody may load for the others, which is the default"
        return [*dropped(settings, SYNC), rewritten(message, "", (LOADING, False))]
    message = f"{LOADING} is on and {SYNC} off: accelerate launch stops, in both versions"
    help = f"remove {SYNC}; {LOADING}: false begins with each rank's own weights"
    return [left(message, SYNC, help=help)]


def _wrapping(settings: Settings) -> list[Change]:
    """``SIZE_BASED_WRAP``, which version 2 cannot do."""
    if text(settings.get(WRAP)) != "SIZE_BASED_WRAP":
        return []
    return [left(BY_SIZE, WRAP, help=TO_CLASSES.format("fsdp_", f"{WRAP}: TRANSFORMER_BASED_WRAP"))]


def _parameters(settings: Settings) -> list[Change]:
    """``fsdp_use_orig_params``: false asks for another order of calls than version 2's."""
    setting = settings.get(PARAMETERS)
    if setting is None or truth(setting.value) is True:
        return dropped(settings, PARAMETERS)
    help = "nothing to do where transformers' Trainer prepares them"
    return [review(FLAT, PARAMETERS, help=help)]


def _buffers(settings: Settings) -> list[Change]:
    """Mixed precision, which version 1 extends to buffers."""
    setting = settings.get("mixed_precision")
    if setting is None or text(setting) in {"", "NO", "FP32", "FALSE"}:
        return []
    stored = settings.get(STORAGE)
    cast = DTYPES.get(text(setting), "")
    if stored is not None and cast and not str(stored.value).startswith(cast):
        message = PACKED.format(stored.value, setting.value)
        return [stays(f"{BUFFERS}; {message}", setting)]
    return [stays(BUFFERS, setting)]


def _sharding_of_version_2(settings: Settings) -> list[Change]:
    """Names where version 2 takes a truth value, which stop it."""
    reshard = settings.get(RESHARD)
    if reshard is None or reshard.unknown or truth(reshard.value) is not None:
        return []
    named = strategy(reshard.value)
    if named is None:
        return [left(f"version 2 takes true or false, not {reshard.value}", RESHARD)]
    if named == "NO_SHARD":
        return [left(NO_SHARD, RESHARD, help=TO_DDP)]
    new = (RESHARD, RESHARDING[named])
    if named.startswith("HYBRID"):
        return _hybrid(settings, named, RESHARD, new)
    return [rewritten(f"version 2 stops at a name: {named} is {str(new[1]).lower()}", RESHARD, new)]


def _version_1_keys(settings: Settings) -> list[Change]:
    """What version 2 ignores: a strategy that was never in force is told, the rest just goes."""
    changes = _ignored_strategy(settings)
    sync = settings.get(SYNC)
    if sync is None:
        return changes + dropped(settings, PARAMETERS, *DEAD)
    if sync.value is False and not (
        LOADING in settings and truth(settings[LOADING].value) is False
    ):
        message = f"accelerate launch stops, as {LOADING} is on unless it is false"
        if LOADING in settings:
            changes.append(left(message, SYNC, help=f"remove {SYNC}, or write {LOADING}: false"))
        else:
            changes += [rewritten(message, SYNC), rewritten(message, "", (LOADING, False))]
        return changes + dropped(settings, PARAMETERS, *DEAD)
    return changes + dropped(settings, SYNC, PARAMETERS, *DEAD)


def _ignored_strategy(settings: Settings) -> list[Change]:
    setting = settings.get(STRATEGY)
    if setting is None:
        return []
    reshard = settings.get(RESHARD)
    runs = "FULL_SHARD" if reshard is None else _meant(reshard)
    new = None if reshard else (RESHARD, True)
    if not setting.unknown and strategy(setting.value) == runs:
        return [rewritten(f"version 2 goes by {RESHARD}", STRATEGY, new)]
    now = "true, its default" if reshard is None else str(reshard.value).lower()
    message = (
        f"version 2 ignores {STRATEGY}: {setting.unknown or setting.value} was never in force, "
        f"{RESHARD} is ({now})"
    )
    return [review(message, STRATEGY, new, help="" if setting.unknown else _instead(setting))]
