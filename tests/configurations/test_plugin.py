"""What accelerate's plugin takes under version 2, run: what a rule about its calls has to write."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import (
    CPUOffload,
    CPUOffloadPolicy,
    FullStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
)

from tests.configurations.running import plugin

BF16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
RESHARD = {"reshard_after_forward": True}


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"sharding_strategy": "FULL_SHARD"}, ValueError),
        ({"sharding_strategy": ShardingStrategy.FULL_SHARD}, ValueError),
        ({"reshard_after_forward": ShardingStrategy.FULL_SHARD}, ValueError),
        ({"reshard_after_forward": "FULL_SHARD"}, ValueError),
        ({"forward_prefetch": False}, ValueError),
        ({"cpu_offload": CPUOffload(offload_params=True)}, ValueError),
        ({"mixed_precision_policy": MixedPrecision(param_dtype=torch.bfloat16)}, ValueError),
        ({"mixed_precision_policy": BF16}, ValueError),
        ({"mixed_precision_policy": {**BF16, "buffer_dtype": torch.bfloat16}}, ValueError),
        ({"state_dict_type": "LOCAL_STATE_DICT"}, ValueError),
        ({"transformer_layer_cls_to_wrap": ["Block"]}, TypeError),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_stops(given: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        plugin({}, fsdp_version=2, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"cpu_offload": True},
        {"cpu_offload": CPUOffloadPolicy()},
        {"mixed_precision_policy": MixedPrecisionPolicy(**BF16)},
        {"mixed_precision_policy": {**BF16, "output_dtype": torch.bfloat16}},
        {"mixed_precision_policy": "bf16"},
        {"state_dict_config": FullStateDictConfig(), "state_dict_type": "FULL_STATE_DICT"},
        {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["Block"]},
        {"activation_checkpointing": True},
        {"backward_prefetch": "BACKWARD_PRE"},  # this one and those below warn, or do nothing
        {"use_orig_params": True},
        {"sync_module_states": True},
        {"limit_all_gathers": True},
    ],
    ids=str,
)
def test_is_taken(given: dict[str, Any]) -> None:
    made = plugin({}, fsdp_version=2, **RESHARD, **given)
    assert made.reshard_after_forward is True
    assert made.use_orig_params is made.sync_module_states is made.backward_prefetch is None


def test_a_configuration_of_full_states_does_not_ask_for_them() -> None:
    """Without ``state_dict_type`` version 2 saves shards, whatever ``state_dict_config`` is."""
    made = plugin({}, fsdp_version=2, state_dict_config=FullStateDictConfig())
    assert made.state_dict_type.name == "SHARDED_STATE_DICT"
    made = plugin({}, fsdp_version=1, state_dict_config=FullStateDictConfig())
    assert made.state_dict_type.name == "FULL_STATE_DICT"


def test_what_the_call_does_not_say_the_launcher_says() -> None:
    """So a call and the file of its run are one migration."""
    launched = {"FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "false"}
    assert plugin(launched).reshard_after_forward is False
    with pytest.raises(ValueError, match="reshard_after_forward"):
        plugin(launched, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    one = plugin({**launched, "FSDP_SHARDING_STRATEGY": "2"}, fsdp_version=1)
    assert one.sharding_strategy is ShardingStrategy.SHARD_GRAD_OP
