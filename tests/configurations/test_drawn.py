"""Drawn files of accelerate: what ran before runs after, sharded and saved as before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fsdp_migrate.configurations.frameworks import accelerate
from fsdp_migrate.configurations.settings import Setting
from tests.configurations import running
from tests.configurations.table import BASE

STRATEGIES = ["FULL_SHARD", "shard_grad_op", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"]
STRATEGIES += [*range(1, 6), *"12345", "Full_Shard", "ZERO3", None, True]  # type: ignore[list-item]
TRUTHS = [True, False, "true", "false", "True", "no", 1, 0]
DRAWN: dict[str, list[Any]] = {
    "fsdp_version": [1, 2, "1", "2"],
    "fsdp_sharding_strategy": STRATEGIES,
    "fsdp_reshard_after_forward": [*TRUTHS, "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", 2],
    "fsdp_state_dict_type": ["FULL_STATE_DICT", "sharded_state_dict", "LOCAL_STATE_DICT", 1, "3"],
    "fsdp_cpu_ram_efficient_loading": TRUTHS,
    "fsdp_sync_module_states": TRUTHS,
    "fsdp_auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "NO_WRAP", "SIZE_BASED_WRAP"],
    "fsdp_backward_prefetch": ["BACKWARD_PRE", "NO_PREFETCH"],
    "fsdp_forward_prefetch": TRUTHS,
    "fsdp_use_orig_params": TRUTHS,
    "fsdp_offload_params": TRUTHS,
    "fsdp_activation_checkpointing": TRUTHS,
    "fsdp_limit_all_gathers": TRUTHS,
    "fsdp_of_tomorrow": ["x"],
}
FILES: list[dict[str, Any]] = [
    {},
    {"num_machines": 2, "num_processes": 16},
    {"num_machines": 2, "num_processes": 3},
    {"mixed_precision": "bf16"},
    {"distributed_type": "MULTI_GPU"},
]
SHARDINGS = {"FULL_SHARD": "reshard", "HYBRID_SHARD": "reshard", "reshard": "reshard"}
SHARDINGS |= {"SHARD_GRAD_OP": "keep", "_HYBRID_SHARD_ZERO2": "keep", "keep": "keep"}


def draw(seed: int) -> dict[str, Any]:
    choose = random.Random(seed)
    names = choose.sample(list(DRAWN), choose.randint(0, 7))
    block = {name: choose.choice(DRAWN[name]) for name in names}
    return {**BASE, **choose.choice(FILES), "fsdp_config": block}


@pytest.mark.parametrize("seed", range(150))
def test_what_ran_still_runs(seed: int) -> None:
    config = draw(seed)
    settings = running.settings_of(config)
    changes = accelerate.migrate(settings)
    if running.outcome(changes) == "left":
        return
    old = [change.old for change in changes if change.old]
    assert len(set(old)) == len(old)
    after = running.migrated(config)
    again = running.settings_of(after)
    assert running.applied(again, accelerate.migrate(again)) == again
    kept = {n: s for n, s in settings.items() if n == "fsdp_of_tomorrow"}
    assert kept.items() <= again.items()
    if config["distributed_type"] != "FSDP":
        assert again == settings
        return
    ran, runs = running.launched(config).split(" "), running.launched(after).split(" ")
    assert not runs[0].endswith("Error:"), (config, runs)
    assert runs[0] == "2"
    if ran[0].endswith("Error:"):
        return  # what accelerate stops at today may be mended
    assert runs[1] == SHARDINGS[ran[1]]
    assert runs[2] == ran[2]
    assert ("DP_SHARD=8" in runs) == ("HYBRID" in ran[1] and config["num_processes"] == 16)
    told = [change for change in changes if change.outcome.value == "review"]
    if "sync" in ran and "loading" not in runs:
        assert told


def test_unknown_values_never_decide() -> None:
    """Whatever is not known is left, dropped or kept: never taken for what it says."""
    for name in DRAWN:
        for version in (1, 2):
            settings = {
                "distributed_type": Setting("distributed_type", "FSDP"),
                "fsdp_version": Setting("fsdp_version", version),
            }
            settings[name] = Setting(name, "FULL_SHARD", "another program fills it in")
            changes = accelerate.migrate(settings)
            for change in changes:
                if change.old == name:
                    assert change.new is None or change.new[1] == "FULL_SHARD" or version == 2
