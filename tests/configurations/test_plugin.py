"""What accelerate's plugin takes under version 2, run: what a rule about its calls has to write."""

from __future__ import annotations

import random
from dataclasses import fields
from functools import partial
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
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy

from fsdp_migrate.configurations.frameworks import accelerate_plugin
from fsdp_migrate.configurations.settings import Setting
from fsdp_migrate.planning.outcome import Outcome
from tests.configurations.running import applied, plugin
from tests.helpers.migrating import migrate, unmarked

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


class Block(torch.nn.Linear):
    """A layer."""


@pytest.mark.parametrize(
    ("given", "picked"),
    [
        (
            {
                "auto_wrap_policy": partial(
                    transformer_auto_wrap_policy, transformer_layer_cls={Block}
                )
            },
            0,
        ),
        ({"auto_wrap_policy": ModuleWrapPolicy({Block})}, None),
        (
            {
                "auto_wrap_policy": "transformer_based_wrap",
                "transformer_cls_names_to_wrap": ["Block"],
            },
            2,
        ),
    ],
    ids=["partial", "policy", "names"],
)
def test_version_2_knows_units_by_names_alone(given: dict[str, Any], picked: int | None) -> None:
    from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy

    made = plugin({}, fsdp_version=2, **given)
    model = torch.nn.Sequential(Block(2, 2), Block(2, 2))
    made.set_auto_wrap_policy(model)
    policy = fsdp2_prepare_auto_wrap_policy(made, model)
    assert picked == (None if policy is None else sum(map(policy, model.modules())))


VALUES: dict[str, list[Any]] = {
    "sharding_strategy": ["FULL_SHARD", "2", "1", "shard_grad_op", ShardingStrategy.FULL_SHARD],
    "reshard_after_forward": ["FULL_SHARD", "SHARD_GRAD_OP", ShardingStrategy.SHARD_GRAD_OP],
    "state_dict_type": ["SHARDED_STATE_DICT", "full_state_dict", "3"],
    "forward_prefetch": [True, False],
    "backward_prefetch": ["BACKWARD_PRE"],
    "use_orig_params": [True, False],
    "limit_all_gathers": [False],
    "cpu_ram_efficient_loading": [False],
    "cpu_offload": [True],
    "auto_wrap_policy": ["no_wrap", "transformer_based_wrap"],
}


@pytest.mark.parametrize("seed", range(60))
def test_drawn_arguments_say_the_same_to_both_versions(seed: int) -> None:
    """What is rewritten is taken, and reshards and saves as version 1 did."""
    draw = random.Random(seed)
    names = draw.sample(sorted(VALUES), draw.randint(0, 5))
    given = {name: draw.choice(VALUES[name]) for name in names}
    settings = {n: Setting(n, getattr(v, "name", v)) for n, v in given.items()}
    changes = accelerate_plugin.migrate(settings)
    assert not any(c.outcome is Outcome.LEFT for c in changes)
    after = {name: s.value for name, s in applied(settings, changes).items()}
    one, two = plugin({}, **given), plugin({}, **after)
    assert two.fsdp_version == 2
    assert two.reshard_after_forward == (one.sharding_strategy is ShardingStrategy.FULL_SHARD)
    assert two.state_dict_type is one.state_dict_type
    assert two.auto_wrap_policy == one.auto_wrap_policy
    assert isinstance(two.cpu_offload, CPUOffloadPolicy) == one.cpu_offload.offload_params


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("sharding_strategy=chosen", "the value of sharding_strategy is not known"),
        ("*given", "by position"),
        ("cpu_offload=make_offload()", "cpu_offload=make_offload() is not made for this call"),
        ("mixed_precision_policy=policies.bf16", "is not made for this call"),
        ('mixed_precision_policy={"param_dtype": half}', "other keys"),
        ("auto_wrap_policy=lambda module, **_: True", "by their classes alone"),
        ("state_dict_type=StateDictType.LOCAL_STATE_DICT", "no local state dict"),
        ("sharding_strategy=9", "no sharding strategy"),
        ("fsdp_version=3", "knows 1 and 2"),
    ],
)
def test_what_is_left_says_why(source: str, named: str) -> None:
    head = "from accelerate import FullyShardedDataParallelPlugin\n"
    head += "from torch.distributed.fsdp import StateDictType\n" if "StateDict" in source else ""
    result, after = migrate({"a.py": f"{head}\nFullyShardedDataParallelPlugin({source})\n"})
    assert [(d.code, d.outcome) for d in result.decisions] == [("FSDP511", Outcome.LEFT)]
    assert named in result.decisions[0].message
    assert unmarked(after["a.py"]).endswith(f"({source})\n")


def test_a_variable_that_others_read_stays_and_is_pointed_at_the_plugin() -> None:
    source = (
        "from accelerate import FullyShardedDataParallelPlugin\n"
        "from torch.distributed.fsdp import ShardingStrategy\n\n"
        "strategy = ShardingStrategy.FULL_SHARD\nprint(strategy)\n"
        "plugin = FullyShardedDataParallelPlugin(sharding_strategy=strategy)\n"
    )
    result, _ = migrate({"a.py": source})
    assert {d.code: d.outcome for d in result.decisions} == {
        "FSDP201": Outcome.LEFT,
        "FSDP511": Outcome.LEFT,
    }
    assert "in the call of the plugin" in result.decisions[0].help


def test_accelerates_precision_casts_buffers_under_version_1() -> None:
    source = (
        "from accelerate import Accelerator, FullyShardedDataParallelPlugin\n\n"
        'plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD")\n'
        'accelerator = Accelerator(mixed_precision="bf16", fsdp_plugin=plugin)\n'
    )
    result, _ = migrate({"a.py": source})
    assert [d.outcome for d in result.decisions] == [Outcome.REVIEW]
    assert "casts buffers" in result.decisions[0].help


def test_the_fields_are_those_of_the_plugin() -> None:
    from accelerate import FullyShardedDataParallelPlugin

    assert {
        each.name for each in fields(FullyShardedDataParallelPlugin)
    } == accelerate_plugin.FIELDS


NAMES = (
    "it is called transformer_cls_names_to_wrap, and does something only beside "
    'auto_wrap_policy="transformer_based_wrap"'
)


@pytest.mark.parametrize("version", [{}, {"fsdp_version": 2, "reshard_after_forward": True}])
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("transformer_layer_cls_to_wrap", NAMES),
        ("fsdp_transformer_layer_cls_to_wrap", NAMES),
        ("mixed_precision", "it is called mixed_precision_policy"),
        ("fsdp_offload_params", "it is called cpu_offload"),
        ("fsdp_state_dict_type", "it is called state_dict_type"),
        ("wrap_everything", "remove it"),
    ],
)
def test_a_field_that_there_is_not_is_named(version: dict[str, Any], name: str, meant: str) -> None:
    with pytest.raises(TypeError):
        plugin({}, **version, **{name: "x"})
    settings = {n: Setting(n, v) for n, v in {**version, name: "x"}.items()}
    (change,) = [c for c in accelerate_plugin.migrate(settings) if c.outcome is Outcome.LEFT]
    assert (change.old, change.help) == (name, meant)
    assert name in change.message
