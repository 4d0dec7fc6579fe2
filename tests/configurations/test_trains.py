"""A program under accelerate trains the same before and after: ``verify`` in its simulation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.configurations.running import migrated
from tests.configurations.table import BASE

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).with_name("program")
LAYERS = {
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_transformer_layer_cls_to_wrap": "Block",
}
SHARDED = {"fsdp_state_dict_type": "SHARDED_STATE_DICT"}
OFFLOAD = {"fsdp_offload_params": True}


def verified(
    scratch: Path,
    block: Mapping[str, Any],
    *options: str,
    file: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    save: str = "",
) -> str:
    """What ``verify`` says of the program with the settings before and after."""
    config = {**BASE, **(file or {}), "fsdp_config": {**block, **LAYERS}}
    for side, content in (("before", config), ("after", after or migrated(config))):
        shutil.copytree(PROGRAM, scratch / side, ignore=shutil.ignore_patterns("__pycache__"))
        text = yaml.safe_dump(dict(content))
        (scratch / side / "accelerate.yaml").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "fsdp_migrate", "verify", "--device", "simulate"]
    command += ["--no-twin", "--before", "before", "--after", "after", *options]
    command += ["train.py", *(["--", save] if save else [])]
    ran = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("block", "file", "options"),
    [
        ({"fsdp_sharding_strategy": "FULL_SHARD"}, {}, ()),
        ({"fsdp_sharding_strategy": "FULL_SHARD", **SHARDED}, {}, ()),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP"}, {}, ()),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP", **SHARDED}, {}, ()),
        ({"fsdp_sharding_strategy": "FULL_SHARD", **OFFLOAD}, {}, ()),
        ({"fsdp_sharding_strategy": "SHARD_GRAD_OP", **OFFLOAD, **SHARDED}, {}, ()),
        (
            {"fsdp_sharding_strategy": "2", "fsdp_state_dict_type": "SHARDED_STATE_DICT"},
            {"mixed_precision": "bf16"},
            (),
        ),
        (
            {"fsdp_sharding_strategy": "HYBRID_SHARD"},
            {"num_machines": 2, "num_processes": 4, "machine_rank": 0},
            ("--nproc", "4", "--env", "DEVICES=2"),
        ),
        ({"fsdp_activation_checkpointing": True}, {}, ("--env", "SEED_BY_RANK=1")),
    ],
    ids=[
        *("full", "full_sharded", "zero2", "zero2_sharded", "offload", "zero2_offload_sharded"),
        *("zero2_sharded_bf16", "two_machines", "rank_0s_weights"),
    ],
)
def test_trains_the_same(
    tmp_path: Path, block: Mapping[str, Any], file: Mapping[str, Any], options: tuple[str, ...]
) -> None:
    said = verified(tmp_path, block, *options, file=file, save="state")
    assert "VERDICT  PASS" in said, said
    assert re.search(r"saved files +PASS +state/", said), said


def test_a_checkpoint_of_version_1_is_continued_by_version_2(tmp_path: Path) -> None:
    block = {"fsdp_sharding_strategy": "FULL_SHARD"}
    config = {**BASE, "fsdp_config": {**block, **LAYERS}}
    saved = str(tmp_path / "state")
    verified(tmp_path / "first", block, after=config, save=saved)
    assert (tmp_path / "state" / "optimizer.bin").exists()
    said = verified(tmp_path / "second", block, "--env", f"RESUME={saved}")
    assert "VERDICT  PASS" in said, said


def test_what_is_for_review_may_train_differently(tmp_path: Path) -> None:
    """Without rank 0's weights ranks keep their own; buffers keep their dtype."""
    block = {"fsdp_cpu_ram_efficient_loading": False}
    said = verified(tmp_path / "weights", block, "--env", "SEED_BY_RANK=1")
    assert "initial weights              FAIL" in said, said
    bf16 = {"mixed_precision": "bf16"}
    said = verified(tmp_path / "buffers", {}, "--env", "BUFFER=1", file=bf16)
    assert "scale is bfloat16 before and float32 after" in said, said


def test_units_by_size_stop_version_2(tmp_path: Path) -> None:
    block = {"fsdp_min_num_params": 5000}
    sized = {**LAYERS, "fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", **block}
    after = {**BASE, "fsdp_config": {**sized, "fsdp_version": 2}}
    said = verified(tmp_path, block, after=after)
    assert "fully_shard does not support containers" in " ".join(said.split()), said
