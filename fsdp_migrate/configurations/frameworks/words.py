"""What the frameworks say in the same words: strategies, truth values, changes of each outcome."""

from __future__ import annotations

from fsdp_migrate.configurations.settings import Change, Setting, Settings, Value
from fsdp_migrate.planning.outcome import Outcome

STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""FSDP1's, in the order of ``ShardingStrategy``: their numbers begin with 1."""

RESHARDING = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}
RESHARDING |= {"HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
"""What ``reshard_after_forward`` is for each. FSDP2 has nothing for NO_SHARD."""

BY_SIZE = (
    "units by size stop version 2: accelerate makes one of every module that is large enough, "
    "lists of layers too, which fully_shard refuses"
)
TO_CLASSES = "name the layers' class in {0}transformer_layer_cls_to_wrap, with {1}"
"""What to write for ``BY_SIZE``: a prefix, and the policy where it is a key of its own."""

BUFFERS = (
    "version 1 also casts buffers, rotary frequencies and running statistics among them, to the "
    "16-bit dtype; version 2 leaves them as they are, so a model with float buffers computes more "
    "exactly than before"
)

TRUE = frozenset({"y", "yes", "t", "true", "on", "1"})
FALSE = frozenset({"n", "no", "f", "false", "off", "0"})


def strategy(value: Value) -> str | None:
    """The strategy that ``value`` names: in any case, by its number, with torch's underscore.

    None for what is no strategy. ``full_shard``, ``1`` and ``"1"`` are FULL_SHARD.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value).strip().upper().removeprefix("_")
    if text.isdigit():
        return STRATEGIES[int(text) - 1] if 1 <= int(text) <= len(STRATEGIES) else None
    return text if text in STRATEGIES else None


def truth(value: Value) -> bool | None:
    """A truth value as the frameworks read it, None for what is none."""
    text = "" if isinstance(value, int) and value not in {0, 1} else str(value).strip().lower()
    return True if text in TRUE else False if text in FALSE else None


def whole(value: Value) -> int | None:
    """A whole number, also as text."""
    text = str(value).strip()
    return int(text) if not isinstance(value, bool) and text.isdigit() else None


def options(value: Value) -> tuple[str, ...]:
    """What ``fsdp`` of transformers and axolotl lists, empty where it is off.

    ``"full_shard auto_wrap offload"``, a list of such words, or a truth value.
    """
    if isinstance(value, tuple):
        return tuple(str(option) for option in value)
    if value is None:
        return ()
    if truth(value):
        return ("full_shard", "auto_wrap")
    words = str(value).replace(",", " ").split()
    return () if not words or truth(words[0]) is False or words[0] == "None" else tuple(words)


def text(setting: Setting | None) -> str:
    """What a setting says in capital letters, empty for one that is not there."""
    return "" if setting is None or setting.value is None else str(setting.value).strip().upper()


def rewritten(message: str, old: str = "", new: tuple[str, Value] | None = None) -> Change:
    return Change(Outcome.REWRITTEN, message, old, new)


def review(
    message: str, old: str = "", new: tuple[str, Value] | None = None, help: str = ""
) -> Change:
    return Change(Outcome.REVIEW, message, old, new, help)


def left(message: str, old: str = "", help: str = "") -> Change:
    return Change(Outcome.LEFT, message, old, None, help)


def stays(message: str, setting: Setting, help: str = "") -> Change:
    """A setting that stays as it is, for somebody to judge."""
    return Change(Outcome.REVIEW, message, setting.name, (setting.name, setting.value), help)


def unknown(settings: Settings, *names: str) -> list[Change]:
    """Those of ``names`` that decide what is written, and whose values are not known here."""
    found = [settings[name] for name in names if name in settings and settings[name].unknown]
    return [left(f"the value of {s.name} is not known here: {s.unknown}", s.name) for s in found]


def version(settings: Settings, name: str) -> int | None:
    """1 or 2 (1 where ``name`` is not set); None for another value."""
    if name not in settings:
        return 1
    number = whole(settings[name].value)
    return number if number in {1, 2} else None


def to_version_2(settings: Settings, name: str) -> Change:
    """``name`` becomes 2, or is added."""
    return rewritten("FSDP2 is version 2", name if name in settings else "", (name, 2))


def dropped(settings: Settings, *names: str) -> list[Change]:
    """Settings that version 2 does not have, each removed with the same note."""
    return [rewritten("FSDP2 does without it", name) for name in names if name in settings]
