"""Settings as a framework's files hold them, and accelerate itself, asked what it makes of them."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from fsdp_migrate.configurations.frameworks import accelerate as ours
from fsdp_migrate.configurations.settings import Change, Setting, Settings
from fsdp_migrate.planning.outcome import Outcome

BLOCKS = {"fsdp_config": "fsdp_", "parallelism_config": "parallelism_config_"}


def settings_of(config: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of an accelerate YAML file, as ``frameworks/accelerate.py`` names them."""
    found: dict[str, Setting] = {}
    for key, value in config.items():
        if key not in BLOCKS:
            found[key] = Setting(key, value)
            continue
        for inner, each in (value or {}).items():
            name = inner if inner.startswith(BLOCKS[key][:-1]) else BLOCKS[key] + inner
            found[name] = Setting(name, each)
    return found


def outcome(changes: Sequence[Change]) -> str:
    """The worst outcome of all, empty where nothing was FSDP1's."""
    found = {change.outcome for change in changes}
    worst = [o for o in (Outcome.LEFT, Outcome.REVIEW, Outcome.REWRITTEN) if o in found]
    return worst[0].value if worst else ""


def applied(settings: Settings, changes: Sequence[Change]) -> dict[str, Setting]:
    """The settings after the changes; as they were where one is left."""
    result = dict(settings)
    if any(change.outcome is Outcome.LEFT for change in changes):
        return result
    for change in changes:
        if change.old:
            del result[change.old]
        if change.new:
            result[change.new[0]] = Setting(*change.new)
    return result


def migrated(config: Mapping[str, Any]) -> dict[str, Any]:
    """An accelerate YAML file's content after our migration."""
    settings = settings_of(config)
    after = applied(settings, ours.migrate(settings))
    result = {k: v for k, v in copy.deepcopy(dict(config)).items() if k not in BLOCKS}
    for name, setting in after.items():
        block = next((b for b, prefix in BLOCKS.items() if name.startswith(prefix)), None)
        if block:
            result.setdefault(block, {})[name] = setting.value
        elif name in result or name not in config:
            result[name] = setting.value
    return result


def environment(config: Mapping[str, Any] | None, flags: Sequence[str] = ()) -> dict[str, str]:
    """The variables that ``accelerate launch`` gives a program, by its own functions.

    Raises:
        ValueError: it refuses.
    """
    from accelerate.commands import launch
    from accelerate.utils.launch import prepare_multi_gpu_env

    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stderr(io.StringIO()):
        argv = list(flags)
        if config is not None:
            path = Path(scratch) / "accelerate.yaml"
            path.write_text(yaml.safe_dump(dict(config)), encoding="utf-8")
            argv = ["--config_file", str(path), *argv]
        parsed = launch.launch_command_parser().parse_args([*argv, "train.py"])
        parsed, *_ = launch._validate_launch_command(parsed)
        parsed.num_machines = parsed.num_machines or 1
        found = prepare_multi_gpu_env(parsed)
    prefixes = ("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_")
    return {key: value for key, value in found.items() if key.startswith(prefixes)}


@contextlib.contextmanager
def in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The environment with ``variables`` and without others of FSDP, and a CUDA device."""
    others = {k: v for k, v in os.environ.items() if not k.startswith(("FSDP_", "ACCELERATE_"))}
    with (
        mock.patch.dict(os.environ, {**others, **variables}, clear=True),
        mock.patch("accelerate.utils.dataclasses.is_cuda_available", return_value=True),
        mock.patch("torch.cuda.current_device", return_value=0),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def plugin(variables: Mapping[str, str], **arguments: Any) -> Any:
    """The plugin that accelerate makes in a program with these variables, or its error."""
    from accelerate.utils import FullyShardedDataParallelPlugin

    with in_environment(variables):
        return FullyShardedDataParallelPlugin(**arguments)


def launched(config: Mapping[str, Any] | None, flags: Sequence[str] = ()) -> str:
    """What accelerate makes of a file and flags, in a line: ``2 reshard FULL``, or its error."""
    try:
        variables = environment(config, flags)
        made = plugin(variables)
    except (ValueError, KeyError, RuntimeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    sizes = [
        f"{key.removeprefix('PARALLELISM_CONFIG_').removesuffix('_SIZE')}={variables[key]}"
        for key in ("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "PARALLELISM_CONFIG_DP_SHARD_SIZE")
        if key in variables
    ]
    return " ".join([described(made), *sizes])


def described(made: Any) -> str:
    """What a plugin is: the version, how it shards, the kind of checkpoint, who loads."""
    if made.fsdp_version == 1:
        sharding = made.sharding_strategy.name
    else:
        sharding = "reshard" if made.reshard_after_forward else "keep"
    state = made.state_dict_type.name.removesuffix("_STATE_DICT")
    loads = ["loading"] if made.cpu_ram_efficient_loading else []
    synced = ["sync"] if made.sync_module_states else []
    return " ".join([f"{made.fsdp_version}", sharding, state, *loads, *synced])


def converted(config: Mapping[str, Any]) -> dict[str, Any]:
    """What accelerate's own converter makes of a file."""
    from accelerate.commands.to_fsdp2 import convert_config_to_fsdp2

    return convert_config_to_fsdp2(copy.deepcopy(dict(config)))
