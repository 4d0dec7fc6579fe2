"""A program with accelerate's plugin trains the same before and after, in the simulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.migrating import rewritten

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).with_name("program") / "with_plugin.py"


def verified(scratch: Path, before: str, after: str, *options: str, save: str = "") -> str:
    for side, text in (("before", before), ("after", after)):
        (scratch / side).mkdir(parents=True)
        (scratch / side / "train.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "fsdp_migrate", "verify", "--device", "simulate"]
    command += ["--no-twin", "--before", "before", "--after", "after", *options]
    command += ["train.py", *(["--", save] if save else [])]
    ran = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    return ran.stdout + ran.stderr


def variants() -> dict[str, str]:
    source = PROGRAM.read_text(encoding="utf-8")
    whole = source.replace("SHARD_GRAD_OP", "FULL_SHARD")
    precision = source[source.index("        mixed_precision_policy=") :]
    precision = precision[: precision.index("        state_dict_config=")]
    assert precision.startswith("        mixed_precision_policy=MixedPrecision(")
    sharded = 'state_dict_type="SHARDED_STATE_DICT"'
    config = "state_dict_config=FullStateDictConfig(offload_to_cpu=True, rank0_only=False)"
    return {
        "zero2_bf16": source,
        "full_float32": whole.replace(precision, ""),
        "sharded_states": whole.replace(config, sharded),
    }


@pytest.mark.parametrize("name", variants())
def test_trains_the_same(tmp_path: Path, name: str) -> None:
    before = variants()[name]
    after = rewritten(before)
    assert "fsdp_version=2" in after
    said = verified(tmp_path, before, after, save="state")
    assert "VERDICT  PASS" in said, said


def test_a_checkpoint_of_version_1_is_continued_by_version_2(tmp_path: Path) -> None:
    before = PROGRAM.read_text(encoding="utf-8")
    after = rewritten(before)
    saved = str(tmp_path / "state")
    verified(tmp_path / "first", before, before, save=saved)
    assert (tmp_path / "state" / "optimizer.bin").exists()
    said = verified(tmp_path / "second", before, after, "--env", f"RESUME={saved}")
    assert "VERDICT  PASS" in said, said
