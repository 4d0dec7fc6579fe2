"""Gives this process the variables that ``accelerate launch`` would, by its own functions."""

import os
from pathlib import Path

from accelerate.commands import launch
from accelerate.utils.launch import prepare_multi_gpu_env


def read(path: Path) -> None:
    parsed = launch.launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    parsed, *_ = launch._validate_launch_command(parsed)
    found = prepare_multi_gpu_env(parsed)
    prefixes = ("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_")
    os.environ.update({k: v for k, v in found.items() if k.startswith(prefixes)})
