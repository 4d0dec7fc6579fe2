"""What a run is configured with, in any format: settings by name, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fsdp_migrate.planning.outcome import Outcome

Value = str | bool | int | float | None | tuple["Value", ...]


@dataclass(frozen=True)
class Setting:
    """One setting as it is written.

    ``name`` is the framework's own full name in lower case; formats translate.

    - accelerate: ``fsdp_sharding_strategy`` for a key of ``fsdp_config:``, for the variable
      ``FSDP_SHARDING_STRATEGY`` and for the flag ``--fsdp_sharding_strategy``. Keys of
      ``parallelism_config:`` and of the file itself (``distributed_type``, ``mixed_precision``,
      ``num_processes``) are there by their own names too.
    - transformers: ``fsdp``, and the keys of ``fsdp_config`` as they are spelled, with or without
      ``fsdp_``.
    - axolotl: likewise, and ``fsdp_version`` is a key of the file. A key of ``fsdp_config`` that
      is one of the file as well is called ``fsdp_config.fsdp_version``.
    - verl: the whole path, ``actor_rollout_ref.actor.fsdp_config.forward_prefetch``, as hydra's
      overrides have it.

    ``value`` is what the format makes of the text (YAML knows numbers and truth values, a shell has
    nothing but text; a flag alone is ``None``; a list is a tuple). ``unknown`` says why the value
    is not known, where another program fills it in.
    """

    name: str
    value: Value
    unknown: str = ""


@dataclass(frozen=True)
class Change:
    """What becomes of one setting, or a setting that is new.

    ``old`` is the name of a setting that stands there, empty for one that is added. ``new`` is the
    name and value in its place, by the same naming; None where nothing comes in its place. One that
    is added goes where the framework has it: ``parallelism_config_*`` below
    ``parallelism_config:``, other ``fsdp_*`` below ``fsdp_config:``. A change that is *left*
    changes nothing: its message says why, and ``help`` what to write. A setting that stays as it
    is, and of which there is nothing to say, has no change.
    """

    outcome: Outcome
    message: str
    old: str = ""
    new: tuple[str, Value] | None = None
    help: str = ""


Settings = Mapping[str, Setting]
"""The settings of one run by name, in the order of the file."""

Migrate = Callable[[Settings], list[Change]]
"""What a framework makes of them: an empty list where nothing is FSDP1's. Where one change is
*left* and not just noted, the settings belong together, so that none of them is changed."""
