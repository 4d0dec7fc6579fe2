"""Drawn arguments of transformers: what ran before runs after, sharded and saved as before."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fsdp_migrate.configurations.frameworks import transformers
from fsdp_migrate.configurations.settings import Setting
from tests.configurations import running
from tests.configurations.test_frameworks import plugin_arguments

TRUTHS = [True, False, "true", "False"]
OPTIONS = ["full_shard", "full_shard auto_wrap", "shard_grad_op offload", "hybrid_shard", True]
OPTIONS += [("shard_grad_op", "auto_wrap"), "no_shard"]  # type: ignore[list-item]
DRAWN: dict[str, list[Any]] = {
    "version": [1, 2, "1", "2"],
    "reshard_after_forward": [*TRUTHS, "full_shard", "shard_grad_op", "hybrid_shard"],
    "state_dict_type": ["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"],
    "cpu_ram_efficient_loading": TRUTHS,
    "sync_module_states": TRUTHS,
    "auto_wrap_policy": ["TRANSFORMER_BASED_WRAP", "NO_WRAP", "SIZE_BASED_WRAP"],
    "backward_prefetch": ["backward_pre", "NO_PREFETCH"],
    "forward_prefetch": TRUTHS,
    "use_orig_params": TRUTHS,
    "limit_all_gathers": TRUTHS,
    "activation_checkpointing": TRUTHS,
    "min_num_params": [0, 100],
    "transformer_layer_cls_to_wrap": ["Block", ("Block", "Other")],
}
KEPT = ("cpu_offload", "state_dict_type", "activation_checkpointing")
KEPT += ("transformer_cls_names_to_wrap", "cpu_ram_efficient_loading")


def draw(seed: int) -> dict[str, Any]:
    choose = random.Random(seed)
    prefix = choose.choice(["", "fsdp_"])
    names = choose.sample(list(DRAWN), choose.randint(0, 7))
    block = {f"{prefix}{name}": choose.choice(DRAWN[name]) for name in names}
    return {"fsdp": choose.choice(OPTIONS), **block}


def plugin_of(settings: dict[str, Setting]) -> dict[str, Any]:
    """What the plugin is given; empty where something stops."""
    try:
        return plugin_arguments({name: setting.value for name, setting in settings.items()})
    except (ValueError, KeyError):
        return {}


@pytest.mark.parametrize("installed", [(), (5, 24)])
@pytest.mark.parametrize("seed", range(60))
def test_what_ran_still_runs(seed: int, installed: tuple[int, ...]) -> None:
    before = {name: Setting(name, value) for name, value in draw(seed).items()}
    changes = transformers.migrate(before, installed)
    if running.outcome(changes) == "left":
        return
    old = [change.old for change in changes if change.old]
    assert len(set(old)) == len(old)
    after = running.applied(before, changes)
    assert running.applied(after, transformers.migrate(after, installed)) == after
    runs = plugin_of(after)
    assert runs, after
    assert runs["fsdp_version"] == 2
    if not (ran := plugin_of(before)):
        return  # what stops today may be mended
    strategies = {"full_shard": True, "shard_grad_op": False, "true": True, "false": False}
    sharded = strategies[str(ran["reshard_after_forward"]).lower()]
    assert runs["reshard_after_forward"] is sharded
    assert {k: runs.get(k) for k in KEPT} == {k: ran.get(k) for k in KEPT}
