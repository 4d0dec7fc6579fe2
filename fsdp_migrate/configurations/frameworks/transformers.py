"""transformers: ``fsdp`` and ``fsdp_config`` of ``TrainingArguments``.

Settings are ``fsdp`` and the keys of ``fsdp_config`` as they are spelled: transformers takes a
prefix ``fsdp_`` off, so ``fsdp_version`` and ``version`` are one. ``fsdp_config`` itself is a
setting where it names a file that was not read. Of the other arguments there are ``bf16`` and
``fp16``, and no more: a file's own ``version`` would be taken for FSDP's.

What a release does with them: before 5.0 ``version`` is not read and all is FSDP1; from 5.0 it is,
with 1 as default, ``reshard_after_forward`` may default to false whatever ``fsdp`` says, and
checkpoints are what accelerate's version defaults to; from 5.10 the default is 2, ``fsdp`` may be
true, and strings are translated. (Read in 4.46, 4.51, 4.57, 5.0, 5.8, 5.10, 5.12 and 5.16, run on
5.24.)
"""

from __future__ import annotations

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
    truth,
    unknown,
    whole,
)
from fsdp_migrate.configurations.settings import Change, Setting, Settings, Value
from fsdp_migrate.planning.outcome import Outcome

OF_TRL = (
    *("SFTConfig", "DPOConfig", "GRPOConfig", "RewardConfig", "KTOConfig", "ORPOConfig"),
    *("CPOConfig", "PPOConfig", "RLOOConfig", "OnlineDPOConfig", "GKDConfig", "BCOConfig"),
)
OF_OTHERS = "SentenceTransformerTrainingArguments"
ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", OF_OTHERS, *OF_TRL)
"""The classes that a program gives the settings to, and subclasses of them in other libraries."""

PREFIX = "fsdp_"
DEAD = (
    "backward_prefetch",
    "backward_prefetch_policy",
    "forward_prefetch",
    "use_orig_params",
    "limit_all_gathers",
)
"""What transformers drops without a word under version 2."""

READS_VERSION, TRANSLATES = (5, 0), (5, 10)
UNSPLIT = "fsdp is no longer a text since 5.10; strings are deprecated"
NO_MESH = "version 2 stops at it: it has nothing for {}"
WEIGHTS = (
    "version 1 began with rank 0's weights; version 2 begins with each rank's own, which are the "
    "same where all come from a checkpoint or a seed is set before the model is made"
)
LOADS = "otherwise write cpu_ram_efficient_loading: true"
HYBRID = (
    "write full_shard, and TrainingArguments(parallelism_config=ParallelismConfig("
    "dp_replicate_size=<machines>, dp_shard_size=<processes of one machine>))"
)


def migrate(settings: Settings, installed: tuple[int, ...] = ()) -> list[Change]:
    """What becomes of the settings of one ``TrainingArguments``.

    ``installed`` is the release of transformers that the project pins, ``(5, 8)``, empty where it
    pins none: then it is taken for a recent one.
    """
    if not settings or not _is_on(settings.get("fsdp")) or truth(_value(settings, "xla")):
        return []
    found = unknown(settings, "fsdp", *_names(settings, "version", "reshard_after_forward"))
    if not found and "fsdp_config" in settings:
        found = [left("the file that fsdp_config names was not read", "fsdp_config")]
    if found:
        return found
    if installed and installed < READS_VERSION:
        message = "transformers before 5.0 does not read fsdp_config's version: it trains FSDP1"
        return [left(message, "fsdp", help="raise transformers to 5.10 or later")]
    changes = _version(settings, installed)
    if any(change.outcome is Outcome.LEFT for change in changes):
        return changes
    return [*changes, *_sharding(settings, installed), *_rest(settings, installed)]


def _is_on(setting: Setting | None) -> bool:
    """Whether ``fsdp`` asks for FSDP: a name, a list, or true.

    A file that ``fsdp_config`` names says nothing of it, and is there for nothing else.
    """
    return setting is None or bool(setting.unknown) or bool(options(setting.value))


def _names(settings: Settings, *keys: str) -> list[str]:
    """The settings of these keys, as they are spelled."""
    return [name for key in keys for name in (key, PREFIX + key) if name in settings]


def _value(settings: Settings, key: str) -> Value:
    names = _names(settings, key)
    return settings[names[0]].value if names else None


def _spelled(settings: Settings, key: str) -> str:
    """The name of a new key: with the prefix where the others have it."""
    others = [name for name in settings if name != "fsdp"]
    return PREFIX + key if any(name.startswith(PREFIX) for name in others) else key


def _version(settings: Settings, installed: tuple[int, ...]) -> list[Change]:
    """``version: 2``, written out: the default is another one in another release."""
    names = _names(settings, "version")
    new = (names[0] if names else _spelled(settings, "version"), 2)
    if len(names) > 1:
        return [left("version stands here twice", names[0], help="keep one")]
    if names and whole(settings[names[0]].value) not in {1, 2}:
        value = settings[names[0]].value
        return [left(f"version is {value}: transformers knows 1 and 2", names[0], help="write 2")]
    if names and whole(settings[names[0]].value) == 2:
        return []
    message = "FSDP2, which is the default from 5.10 on and not before"
    silent = not _names(settings, "sync_module_states")  # it is on, and nobody says so
    if silent and _now(settings, installed) == 1 and _begins_with_rank_0(settings):
        return [review(WEIGHTS, names[0] if names else "", new, help=LOADS)]
    return [rewritten(message, names[0] if names else "", new)]


def _sharding(settings: Settings, installed: tuple[int, ...]) -> list[Change]:
    """The strategy in ``fsdp`` and the one in ``reshard_after_forward``."""
    fsdp = settings.get("fsdp")
    listed = options(fsdp.value) if fsdp else ()
    found = [name for name in map(strategy, listed) if name]
    named = found[0] if found else "FULL_SHARD"
    keys = _names(settings, "reshard_after_forward")
    key = settings[keys[0]] if keys else None
    if named not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
        help = HYBRID if named.startswith("HYBRID") else "train with DDP: leave fsdp out"
        return [left(NO_MESH.format(named), "fsdp", help=help)]
    changes = (
        []
        if key is None and fsdp is None
        else _reshard(settings, key, named, installed, bool(found))
    )
    if fsdp and installed >= TRANSLATES and isinstance(fsdp.value, str | tuple):
        changes.append(rewritten(UNSPLIT, "fsdp", ("fsdp", True)))
        if "offload" in listed and not _names(settings, "cpu_offload"):
            new = (_spelled(settings, "cpu_offload"), True)
            changes.append(rewritten("offload is a key of fsdp_config", "", new))
    return changes


def _reshard(
    settings: Settings,
    key: Setting | None,
    named: str,
    installed: tuple[int, ...],
    said: bool,
) -> list[Change]:
    new = (_spelled(settings, "reshard_after_forward"), RESHARDING[named])
    if key is None:
        if _now(settings, installed) == 2 and installed and installed < TRANSLATES:
            message = f"this release may have trained with false; fsdp says {named.lower()}"
            return [review(message, "", new)]
        return [rewritten(f"{named.lower()} is {str(new[1]).lower()}, written out", "", new)]
    meant = truth(key.value)
    meant = None if isinstance(key.value, int) and not isinstance(key.value, bool) else meant
    if meant is None:
        name = strategy(key.value)
        if name not in {"FULL_SHARD", "SHARD_GRAD_OP"}:
            return [left(NO_MESH.format(key.value), key.name, help=HYBRID if name else "")]
        if said and name != named:
            message = f"fsdp says {named.lower()}, and {key.name} {key.value}"
            return [left(message, key.name, help="keep the one that is meant, as true or false")]
        new = (key.name, RESHARDING[name])
        return [rewritten(f"version 2 takes a truth value for {key.value}", key.name, new)]
    return []  # in force: version 1 stops at a truth value


def _now(settings: Settings, installed: tuple[int, ...]) -> int:
    """The version that runs today."""
    written = whole(_value(settings, "version"))
    return written or (2 if installed >= TRANSLATES else 1)


def _rest(settings: Settings, installed: tuple[int, ...]) -> list[Change]:
    """Checkpoints, units by size, rank 0's weights, and what version 2 has nothing for."""
    now = _now(settings, installed)
    changes = dropped(settings, *_names(settings, *DEAD))
    for name in _names(settings, "state_dict_type"):
        if text(settings[name]) in {"LOCAL_STATE_DICT", "2"}:
            message = "FSDP2 has no local state dict: accelerate stops"
            changes.append(left(message, name, help="FULL_STATE_DICT or SHARDED_STATE_DICT"))
    if now == 2:
        return changes + dropped(settings, *_names(settings, "sync_module_states"))
    changes += _by_size(settings, installed)
    return [*changes, *_weights(settings), *_buffers(settings)]


def _by_size(settings: Settings, installed: tuple[int, ...]) -> list[Change]:
    """``min_num_params``, and the policy that it belongs to."""
    policies = _names(settings, "auto_wrap_policy")
    if policies and text(settings[policies[0]]) == "SIZE_BASED_WRAP":
        help = TO_CLASSES.format("", "auto_wrap_policy: TRANSFORMER_BASED_WRAP")
        return [left(BY_SIZE, policies[0], help=help)]
    names = _names(settings, "min_num_params")
    if not names or not whole(settings[names[0]].value):
        return []
    if installed and installed < TRANSLATES:
        return [left(BY_SIZE, names[0], help=TO_CLASSES.format("", "without min_num_params"))]
    message = "no longer read: the layers that the model names are units, of any size"
    return [stays(message, settings[names[0]])]


def _buffers(settings: Settings) -> list[Change]:
    """Mixed precision, which version 1 extends to buffers."""
    names = [name for name in ("bf16", "fp16") if name in settings]
    return [stays(BUFFERS, settings[n]) for n in names if truth(settings[n].value) is not False]


def _weights(settings: Settings) -> list[Change]:
    """``sync_module_states``, where it stands."""
    names = _names(settings, "sync_module_states")
    if names and _begins_with_rank_0(settings):
        return [review(WEIGHTS, names[0], help=LOADS)]
    return dropped(settings, *names)


def _begins_with_rank_0(settings: Settings) -> bool:
    """Whether version 1 sends rank 0's weights to the others, and version 2 does not."""
    names = _names(settings, "sync_module_states")
    loading = _names(settings, "cpu_ram_efficient_loading")
    loads = truth(settings[loading[0]].value) if loading else False
    return not loads and not (names and truth(settings[names[0]].value) is False)
