"""The variables that accelerate reads, by the names of its settings."""

from __future__ import annotations

import re

VARIABLES = re.compile(r"FSDP_(?!VERSION$|CPU_RAM)\w+|ACCELERATE_USE_FSDP")
"""Variables that show that accelerate is meant; transformers reads others too."""

OF_ACCELERATE = re.compile(
    r"FSDP_(VERSION|SHARDING_STRATEGY|RESHARD_AFTER_FORWARD|OFFLOAD_PARAMS|MIN_NUM_PARAMS"
    r"|AUTO_WRAP_POLICY|TRANSFORMER_CLS_TO_WRAP|BACKWARD_PREFETCH|FORWARD_PREFETCH|STATE_DICT_TYPE"
    r"|USE_ORIG_PARAMS|SYNC_MODULE_STATES|CPU_RAM_EFFICIENT_LOADING|ACTIVATION_CHECKPOINTING"
    r"|IGNORED_MODULES)|ACCELERATE_USE_FSDP|ACCELERATE_USE_PARALLELISM_CONFIG|PARALLELISM_CONFIG_\w+"
)


def setting_of(variable: str) -> str:
    if variable == "FSDP_TRANSFORMER_CLS_TO_WRAP":
        return "fsdp_transformer_layer_cls_to_wrap"
    return variable.lower().removeprefix("accelerate_")


def variable_of(setting: str) -> str:
    """The variable of a setting that comes new."""
    upper = setting.upper()
    return f"ACCELERATE_{upper}" if setting.startswith("use_") else upper
