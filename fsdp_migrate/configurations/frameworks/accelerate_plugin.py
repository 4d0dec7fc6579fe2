"""accelerate: arguments of ``FullyShardedDataParallelPlugin(...)`` in a program.

Settings are named as the arguments are: ``sharding_strategy``, ``cpu_offload``. A member of an enum
is its name. They mean what the keys of a file mean (``accelerate.py``), with the plugin's own
defaults, not those of ``accelerate launch``: nothing synchronises weights unless asked.
"""

from __future__ import annotations

from fsdp_migrate.configurations.frameworks.accelerate import HAS_VERSION_2, LOCAL, NO_SHARD
from fsdp_migrate.configurations.frameworks.words import (
    BY_SIZE,
    RESHARDING,
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
)
from fsdp_migrate.configurations.settings import Change, Settings

VERSION = "fsdp_version"
STRATEGY = "sharding_strategy"
RESHARD = "reshard_after_forward"
STATE = "state_dict_type"
LOADING = "cpu_ram_efficient_loading"
SYNC = "sync_module_states"
WRAP = "auto_wrap_policy"
NAMES = "transformer_cls_names_to_wrap"
INITIAL = "param_init_fn"
DEAD = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")

OTHERS = frozenset({
    "activation_checkpointing", "activation_checkpointing_offload", "cpu_offload",
    "ignored_modules", "min_num_params", "mixed_precision_policy", "optim_state_dict_config",
    "state_dict_config",
    NAMES,
})  # fmt: skip
FIELDS = OTHERS | {VERSION, STRATEGY, RESHARD, STATE, LOADING, SYNC, WRAP, INITIAL, *DEAD}
MEANT = {  # names of files, of torch and of transformers
    "transformer_layer_cls_to_wrap": NAMES,
    "mixed_precision": "mixed_precision_policy",
    "mp_policy": "mixed_precision_policy",
    "offload_params": "cpu_offload",
    "offload_policy": "cpu_offload",
    "backward_prefetch_policy": "backward_prefetch",
    "version": VERSION,
}

TO_DDP = "Accelerator() without an fsdp_plugin, under `accelerate launch --multi_gpu`, is DDP"
TO_OTHER_STATE = (
    "load the old checkpoint once with version 1 and save it as FULL_STATE_DICT, then write "
    'state_dict_type="SHARDED_STATE_DICT"'
)
TO_NAMES = (
    "name the layers' class in transformer_cls_names_to_wrap, with "
    'auto_wrap_policy="transformer_based_wrap"'
)
SIZES = (
    "Accelerator(parallelism_config=ParallelismConfig(dp_replicate_size=<machines>, "
    "dp_shard_size=<processes of one machine>))"
)
WEIGHTS = (
    f"version 1 begins with rank 0's weights; version 2 does so only under {LOADING}, and "
    "otherwise with each rank's own"
)
SEED = f"seed before the model is made, or write {LOADING}=True"


def migrate(settings: Settings, installed: tuple[int, ...] = ()) -> list[Change]:
    """What becomes of the arguments of one call.

    ``installed`` is the release that the project pins, empty where it pins none.
    """
    found = unknown(settings, VERSION, STRATEGY, RESHARD)
    if found:
        return found
    now = 2 if is_version_2(settings) else version(settings, VERSION)
    if now is None:
        value = settings[VERSION].value
        return [left(f"{VERSION} is {value}: accelerate knows 1 and 2", VERSION)]
    if installed and installed < HAS_VERSION_2:
        message = "accelerate before 1.6 has no version 2"
        return [left(message, VERSION if VERSION in settings else "", help="raise accelerate")]
    first = [to_version_2(settings, VERSION)] if now == 1 else []
    first += [_no_field(name, settings) for name in settings if name not in FIELDS]
    weights = _weights(settings) if now == 1 else dropped(settings, SYNC)
    return [
        *first,
        *(_sharding(settings) if now == 1 else _sharding_of_version_2(settings)),
        *_state(settings, now),
        *weights,
        *_wrapping(settings),
        *_initial(settings),
        *dropped(settings, *DEAD),
    ]


def is_version_2(settings: Settings) -> bool:
    """Whether a call is one of version 2: it says so, or stops under version 1."""
    if VERSION in settings:
        return not settings[VERSION].unknown and version(settings, VERSION) == 2
    reshard = settings.get(RESHARD)
    return reshard is not None and isinstance(reshard.value, bool)


def _no_field(name: str, settings: Settings) -> Change:
    """An argument that the plugin has in no release: it stops at it."""
    bare = name.removeprefix("fsdp_")
    meant = MEANT.get(bare, bare if bare in FIELDS else "")
    help = f"it is called {meant}" if meant else "remove it"
    if meant == NAMES and WRAP not in settings:
        help += f', and does something only beside {WRAP}="transformer_based_wrap"'
    return left(f"accelerate's plugin has no {name}, and stops at it", name, help=help)


def _said(reshard: bool) -> str:
    return f"{RESHARD}={reshard}"


def _sharding(settings: Settings) -> list[Change]:
    """Version 1's strategy. It goes by ``sharding_strategy`` alone."""
    written, alias = settings.get(STRATEGY), settings.get(RESHARD)
    named = strategy(written.value) if written and written.value is not None else "FULL_SHARD"
    if named is None:
        assert written is not None
        return [left(f"{written.value} is no sharding strategy of FSDP1", STRATEGY)]
    if named == "NO_SHARD":
        return [left(NO_SHARD, STRATEGY, help=TO_DDP)]
    new = RESHARDING[named]
    if named.startswith("HYBRID"):
        return [_hybrid(named, STRATEGY, new)]
    message = f"{named} is {_said(new)}"
    if alias is None:
        return [rewritten(message, STRATEGY, (RESHARD, new))] if written else []
    gone = [rewritten(f"{RESHARD} says it", STRATEGY)] if written else []
    meant = strategy(alias.value)
    if meant == named:
        return [rewritten(message, RESHARD, (RESHARD, new)), *gone]
    told = (
        f"version 1 goes by {STRATEGY} alone and has trained with {named}, which is {_said(new)} "
        f"in version 2; {RESHARD} says {alias.value}"
    )
    return [review(told, RESHARD, (RESHARD, new)), *gone]


def _sharding_of_version_2(settings: Settings) -> list[Change]:
    """Names where version 2 takes a truth value, and a strategy, which it stops at."""
    written, reshard = settings.get(STRATEGY), settings.get(RESHARD)
    if reshard is not None and (reshard.value is None or truth(reshard.value) is not None):
        return dropped(settings, STRATEGY)
    asked = reshard or written
    if asked is None or asked.value is None:
        return dropped(settings, STRATEGY)
    named = strategy(asked.value)
    if named is None:
        return [left(f"version 2 takes True or False, not {asked.value}", asked.name)]
    if named == "NO_SHARD":
        return [left(NO_SHARD, asked.name, help=TO_DDP)]
    new = RESHARDING[named]
    if named.startswith("HYBRID"):
        return [_hybrid(named, asked.name, new)]
    message = f"version 2 stops at a name: {named} is {_said(new)}"
    gone = dropped(settings, STRATEGY) if reshard is not None else []
    return [rewritten(message, asked.name, (RESHARD, new)), *gone]


def _hybrid(named: str, place: str, new: bool) -> Change:
    message = (
        f"{named} shards over the devices of one machine and replicates over machines: version 2 "
        "needs both numbers, and they do not stand here"
    )
    return left(message, place, help=f"write {_said(new)}, and {SIZES}")


def _state(settings: Settings, now: int) -> list[Change]:
    """The kind of checkpoints: version 1's default is written out, its local kind is refused."""
    setting = settings.get(STATE)
    if setting is None or (setting.value is None and not setting.unknown):
        message = "FULL_STATE_DICT is version 1's default, and not version 2's"
        place = STATE if setting else ""
        return [rewritten(message, place, (STATE, "FULL_STATE_DICT"))] if now == 1 else []
    if setting.unknown:
        message = f"LOCAL_STATE_DICT stops version 2: {setting.unknown}"
        return [stays(message, setting)] if now == 1 else []
    if text(setting) in {"LOCAL_STATE_DICT", "2"}:
        return [left(LOCAL, STATE, help=TO_OTHER_STATE)]
    return []


def _weights(settings: Settings) -> list[Change]:
    """``sync_module_states``, which version 1 turns on by itself where rank 0 alone loads."""
    sync, loading = settings.get(SYNC), settings.get(LOADING)
    if sync is None or (not sync.unknown and not sync.value):
        return dropped(settings, SYNC)
    if loading is not None and not loading.unknown and loading.value is True:
        return dropped(settings, SYNC)
    return [review(WEIGHTS, SYNC, help=SEED)]


def _wrapping(settings: Settings) -> list[Change]:
    if text(settings.get(WRAP)) != "SIZE_BASED_WRAP":
        return []
    return [left(BY_SIZE, WRAP, help=TO_NAMES)]


def _initial(settings: Settings) -> list[Change]:
    if INITIAL not in settings:
        return []
    if settings[INITIAL].value is None and not settings[INITIAL].unknown:
        return dropped(settings, INITIAL)
    message = f"version 2 does not call {INITIAL}"
    return [review(message, INITIAL, help="modules on the meta device stay as to_empty makes them")]
