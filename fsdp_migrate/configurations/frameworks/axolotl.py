"""axolotl: ``fsdp_version``, ``fsdp`` and ``fsdp_config`` of its YAML files.

Settings are ``fsdp``, ``fsdp_version``, the keys of ``fsdp_config`` as they are spelled, and those
keys of the file that go with it (``optimizer``, ``bf16``, ``rl``, ``load_in_4bit``). A version
inside ``fsdp_config`` is ``fsdp_config.fsdp_version``. Read in axolotl's schemas of 2026-07-24 and
0.19.0:
keys that its ``FSDPConfig`` does not have, the strategy among them, are ignored without a word.
"""

from __future__ import annotations

from collections.abc import Collection

from fsdp_migrate.configurations.frameworks.words import (
    BUFFERS,
    BY_SIZE,
    RESHARDING,
    TO_CLASSES,
    dropped,
    left,
    options,
    review,
    rewritten,
    stays,
    strategy,
    text,
    to_version_2,
    truth,
    unknown,
    whole,
)
from fsdp_migrate.configurations.settings import Change, Settings, Value

VERSION, INNER = "fsdp_version", ("fsdp_config.fsdp_version", "fsdp_config.version", "version")
KEPT = (
    "offload_params",
    "cpu_ram_efficient_loading",
    "auto_wrap_policy",
    "transformer_layer_cls_to_wrap",
    "min_num_params",
    "state_dict_type",
    "final_state_dict_type",
    "activation_checkpointing",
    "mixed_precision_policy",
    "cpu_offload_pin_memory",
)
"""Keys that lose their prefix."""

FINAL = "fsdp_final_state_dict_type"
OUTER = f"file.{FINAL}"  # the name of one that stands beside ``fsdp_config``, as it once did

DEAD = (
    "backward_prefetch",
    "backward_prefetch_policy",
    "forward_prefetch",
    "sync_module_states",
    "limit_all_gathers",
)
STOPS_AT = ("ADAMW_8BIT", "ADAMW_BNB_8BIT")
EIGHT_BIT = (
    *STOPS_AT,
    *("PAGED_ADAMW_8BIT", "LION_8BIT", "PAGED_LION_8BIT", "RMSPROP_BNB_8BIT"),
    *("ADEMAMIX_8BIT", "PAGED_ADEMAMIX_8BIT"),
)
"""bitsandbytes' optimizers; version 2's parameters are DTensors, which those do not know."""
PREFERENCES = ("DPO", "KTO", "ORPO", "IPO")  # what axolotl does not train quantised under version 2


def migrate(settings: Settings) -> list[Change]:
    """What becomes of the settings of one axolotl file."""
    inner = [name for name in INNER if name in settings]
    keys = (*KEPT, *DEAD, "sharding_strategy", "reshard_after_forward", "use_orig_params")
    if not inner and not _names(settings, *keys) and not _is_listed(settings):
        return []
    found = unknown(settings, VERSION, *inner, "fsdp", *_names(settings, "sharding_strategy"))
    if found:
        return found
    names = [name for name in (VERSION, *inner) if name in settings]
    numbers = {whole(settings[name].value) for name in names}
    if len(numbers) > 1 or not numbers <= {1, 2}:
        message = f"the version is {', '.join(str(settings[n].value) for n in names)}"
        return [left(message, names[0], help="write fsdp_version: 2, once")]
    now = numbers.pop() if numbers else 1
    changes = [] if now == 2 else [to_version_2(settings, VERSION)]
    changes += [rewritten("said by fsdp_version", n) for n in inner if now != 2]
    loading = _loading(settings, now or 1)
    return [
        *changes,
        *_sharding(settings, now or 1),
        *_refused(settings, now or 1),
        *_weights(settings, now or 1),
        *loading,
        *_outer(settings, now or 1),
        *_plain(settings, {change.old for change in loading}),
        *_buffers(settings, now or 1),
    ]


def _is_listed(settings: Settings) -> bool:
    """Whether the older list ``fsdp`` has something in it; a file may have it empty."""
    listed = settings.get("fsdp")
    return listed is not None and (bool(listed.unknown) or bool(options(listed.value)))


def _names(settings: Settings, *keys: str) -> list[str]:
    return [name for key in keys for name in (key, f"fsdp_{key}") if name in settings]


def _sharding(settings: Settings, now: int) -> list[Change]:
    """``fsdp_sharding_strategy`` and the list ``fsdp`` become ``reshard_after_forward``."""
    given = options(settings["fsdp"].value) if "fsdp" in settings else ()
    listed = [name for name in map(strategy, given) if name]
    keys = _names(settings, "sharding_strategy")
    reshard = _names(settings, "reshard_after_forward")
    written = [strategy(settings[key].value) for key in keys]
    named = [*written, *listed] or ["FULL_SHARD"]
    if None in named or len(set(named)) > 1:
        said = ", ".join(str(settings[key].value) for key in keys)
        message = f"the strategy is {', '.join(filter(None, [said, *given]))}"
        return [left(message, keys[0] if keys else "fsdp", help="reshard_after_forward: true")]
    wanted = named[0] or ""
    place = keys[0] if keys else "fsdp"
    if wanted == "NO_SHARD":
        message = "version 2 has nothing for NO_SHARD"
        return [left(message, place, help="train with DDP: leave fsdp_config out")]
    if wanted.startswith("HYBRID"):
        help = (
            f"reshard_after_forward: {str(RESHARDING[wanted]).lower()}, with dp_replicate_size: "
            "<machines> and dp_shard_size: <processes of one machine> as keys of the file"
        )
        return [left(f"{wanted} needs both sizes of its mesh under version 2", place, help=help)]
    list_ = _list(settings, given)
    if reshard:
        return [*list_, *_beside(settings, keys, reshard[0], wanted)]
    new = ("reshard_after_forward", RESHARDING[wanted])
    message = f"{wanted} is reshard_after_forward: {str(new[1]).lower()}"
    if now == 2:
        if not keys:
            return list_
        message = f"version 2 ignores the strategy {wanted}, and shards as true says"
        return [*list_, review(message, keys[0], ("reshard_after_forward", True))]
    if wanted == "SHARD_GRAD_OP" and keys:
        message += "; releases with a schema for fsdp_config ignored it, and trained as true says"
        return [*list_, review(message, keys[0], new)]
    return [*list_, rewritten(message, keys[0] if keys else "", new)]


def _beside(settings: Settings, keys: list[str], reshard: str, wanted: str) -> list[Change]:
    """A strategy beside ``reshard_after_forward``."""
    value = truth(settings[reshard].value)
    renamed = []
    if value is None:
        named = strategy(settings[reshard].value)
        if named not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
            return [left(f"it takes true or false, not {settings[reshard].value}", reshard)]
        value = RESHARDING[named]
    if reshard != "reshard_after_forward" or settings[reshard].value is not value:
        renamed = [rewritten("version 2's name", reshard, ("reshard_after_forward", value))]
    if keys and value != RESHARDING[wanted]:
        message = f"{keys[0]} says {wanted}, and {reshard} {settings[reshard].value}"
        return [left(message, keys[0], help="keep reshard_after_forward: true or false")]
    return [*renamed, *(rewritten("reshard_after_forward says it", key) for key in keys)]


def _list(settings: Settings, given: tuple[str, ...]) -> list[Change]:
    """The older list: its options are keys of ``fsdp_config``."""
    if not _is_listed(settings):
        return []
    changes = [rewritten("fsdp_config says it; the list is deprecated", "fsdp")]
    if "offload" in given and not _names(settings, "offload_params"):
        changes.append(rewritten("from the list", "", ("offload_params", True)))
    if "auto_wrap" in given and not _names(settings, "auto_wrap_policy"):
        new = ("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
        changes.append(rewritten("from the list", "", new))
    return changes


def _refused(settings: Settings, now: int) -> list[Change]:
    """What axolotl stops at under version 2."""
    changes = []
    if now != 2 and text(settings.get("optimizer")) in EIGHT_BIT:
        stops = "axolotl stops under version 2: " if text(settings["optimizer"]) in STOPS_AT else ""
        message = f"{stops}bitsandbytes' 8-bit optimizers do not work under version 2"
        help = "optimizer: adamw_torch_8bit, which trains differently"
        changes.append(left(message, "optimizer", help=help))
    quantised = [n for n in ("load_in_8bit", "load_in_4bit") if truth(_value(settings, n))]
    if now != 2 and quantised and text(settings.get("rl")) in PREFERENCES:
        message = f"axolotl stops under version 2: it does not train {quantised[0]} with rl there"
        changes.append(left(message, "rl", help="DeepSpeed, or stay with FSDP1"))
    for name in _names(settings, "auto_wrap_policy"):
        if now != 2 and text(settings[name]) == "SIZE_BASED_WRAP":
            help = TO_CLASSES.format("", "auto_wrap_policy: TRANSFORMER_BASED_WRAP")
            changes.append(left(BY_SIZE, name, help=help))
    kinds = _names(settings, "state_dict_type", "final_state_dict_type")
    for name in [*kinds, *((OUTER,) if OUTER in settings else ())]:
        if text(settings[name]) == "LOCAL_STATE_DICT":
            message = "FSDP2 has no local state dict"
            changes.append(left(message, name, help="FULL_STATE_DICT or SHARDED_STATE_DICT"))
    return changes


def _value(settings: Settings, name: str) -> Value:
    return settings[name].value if name in settings else None


def _buffers(settings: Settings, now: int) -> list[Change]:
    """Mixed precision, which version 1 extends to buffers; ``auto`` is bf16 where it can be."""
    names = [name for name in ("bf16", "fp16") if name in settings and now != 2]
    on = [n for n in names if settings[n].value and truth(settings[n].value) is not False]
    return [stays(BUFFERS, settings[name]) for name in on]


def _weights(settings: Settings, now: int) -> list[Change]:
    """``fsdp_sync_module_states`` where rank 0 does not load the weights."""
    names = _names(settings, "sync_module_states")
    loading = _names(settings, "cpu_ram_efficient_loading")
    loads = bool(loading) and truth(settings[loading[0]].value) is not False
    if now == 2 or not names or loads or truth(settings[names[0]].value) is False:
        return dropped(settings, *names)
    message = (
        "version 1 began with rank 0's weights; version 2 begins with each rank's own, which are "
        "the same where all come from a checkpoint or one seed"
    )
    return [review(message, names[0], help="otherwise write cpu_ram_efficient_loading: true")]


def _loading(settings: Settings, now: int) -> list[Change]:
    """Weights that rank 0 alone loads, and quantises, at which version 2 stops."""
    names = [n for n in _names(settings, "cpu_ram_efficient_loading") if truth(_value(settings, n))]
    if now == 2 or not names or truth(_value(settings, "load_in_4bit")) is not True:
        return []
    message = "version 2 stops at it with load_in_4bit: every rank loads the model"
    help = "each needs the memory of the host for it"
    return [review(message, names[0], ("cpu_ram_efficient_loading", False), help)]


def _outer(settings: Settings, now: int) -> list[Change]:
    """The kind of the last checkpoint as a key of the file, which newer releases do not read."""
    setting, key = settings.get(OUTER), FINAL.removeprefix("fsdp_")
    if now == 2 or setting is None or setting.unknown or _names(settings, key):
        return []
    return [
        rewritten("fsdp_config says it", OUTER),
        rewritten("from the key of the file", "", (key, setting.value)),
    ]


def _plain(settings: Settings, written: Collection[str]) -> list[Change]:
    """Keys that are dropped, or lose their prefix where that is not ``written`` already."""
    dead = [n for n in _names(settings, *DEAD) if not n.endswith("sync_module_states")]
    changes = dropped(settings, *dead)
    needs_it = text(settings.get("optimizer")).startswith("Q_GALORE")
    changes += [] if needs_it else dropped(settings, *_names(settings, "use_orig_params"))
    for key in KEPT:
        old = f"fsdp_{key}"
        if old in settings and not settings[old].unknown and old not in written:
            changes.append(rewritten("version 2's name", old, (key, settings[old].value)))
    return changes
