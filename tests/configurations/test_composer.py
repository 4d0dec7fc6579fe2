"""composer's keys: what version 2 reads of them, and what runs beside a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.configurations import engine
from fsdp_migrate.configurations.frameworks import composer
from fsdp_migrate.configurations.settings import Setting, Value
from fsdp_migrate.planning.outcome import Outcome

FILE = "max_duration: 1ep\nglobal_train_batch_size: 8\nfsdp_config:\n"
OLD = b"from composer import Trainer\nTrainer(\n    model=model,\n    fsdp_config=config,\n)\n"
NEW = b"from composer import Trainer\nTrainer(parallelism_config={'fsdp': config})\n"


def outcome(name: str, value: Value) -> Outcome:
    """What becomes of one key among others that change nothing."""
    settings = {name: Setting(name, value), "mixed_precision": Setting("mixed_precision", "FULL")}
    changes = [c for c in composer.keys(settings, switch=False) if c.old == name]
    return changes[0].outcome


CASES: list[tuple[str, Value, str]] = [
    ("sharding_strategy", "full_shard", "rewritten"),
    ("sharding_strategy", "SHARD_GRAD_OP", "rewritten"),
    ("sharding_strategy", "NO_SHARD", "left"),
    ("sharding_strategy", "_HYBRID_SHARD_ZERO2", "left"),
    ("sharding_strategy", "ZERO3", "left"),
    ("backward_prefetch", "BACKWARD_PRE", "rewritten"),
    ("use_orig_params", True, "rewritten"),
    ("use_orig_params", False, "review"),
    ("sync_module_states", False, "rewritten"),
    ("sync_module_states", True, "review"),
    ("activation_checkpointing_reentrant", False, "rewritten"),
    ("cpu_offload", False, "rewritten"),
    ("cpu_offload", True, "left"),
    ("data_parallel_shard_degree", -1, "rewritten"),
    ("data_parallel_shard_degree", 8, "left"),
    ("data_parallel_replicate_degree", 2, "left"),
    ("keep_low_precision_grads", True, "left"),
    ("ignored_modules", "head", "left"),
    ("te_shard_fp8_weight", True, "left"),
    ("auto_wrap", False, "left"),
]


@pytest.mark.parametrize(("name", "value", "expected"), CASES)
def test_what_becomes_of_a_key(name: str, value: Value, expected: str) -> None:
    assert outcome(name, value).value == expected


def test_every_key_of_version_1_is_in_a_table() -> None:
    judged = {"sharding_strategy", "sync_module_states", "use_orig_params"}
    judged |= {"activation_checkpointing_reentrant"}
    assert composer.DEFAULTS.keys() == judged | composer.SAME | composer.LEFT.keys()
    assert not composer.DEFAULTS.keys() & composer.KEPT


def decided(text: str, sources: dict[str, bytes], installed: tuple[int, ...] = ()) -> set[str]:
    files = {Path("/a/conf.yaml"): text.encode()}
    python = {Path(f"/a/{name}"): data for name, data in sources.items()}
    found = engine.read(files, str, Path("/a"), lambda name, path: installed, python)
    configured, _ = found.decide(100, lambda code, key: "")
    return {each.outcome.value for each in configured}


BLOCK = f"{FILE}  sharding_strategy: FULL_SHARD\n  mixed_precision: FULL\n"
PROGRAMS = [
    ({}, (), {"review", "rewritten"}),
    ({"train.py": OLD}, (), {"left"}),
    ({"train.py": NEW}, (), {"review", "rewritten"}),
    ({"train.py": OLD, "new.py": NEW}, (), {"review", "rewritten"}),
    ({"train.py": OLD.replace(b"config,", b"None,")}, (), {"review", "rewritten"}),
    ({"train.py": OLD.replace(b"composer", b"ours")}, (), {"review", "rewritten"}),
    ({}, (0, 20, 1), {"left"}),
    ({}, (0, 32, 0), {"review", "rewritten"}),
]


@pytest.mark.parametrize(("sources", "installed", "expected"), PROGRAMS)
def test_what_runs_beside_a_file(
    sources: dict[str, bytes], installed: tuple[int, ...], expected: set[str]
) -> None:
    assert decided(BLOCK, sources, installed) == expected


LEFT = ["  ${fsdp}\n", "  mixed_precision:\n    param_dtype: bf16\n", "  auto_wrap: ${wrap}\n"]


@pytest.mark.parametrize("block", LEFT)
def test_what_is_not_known_is_left(block: str) -> None:
    text = f"{FILE.rstrip()}{block.rstrip()}\n" if "${fsdp}" in block else FILE + block
    assert decided(text, {}) == {"left"}


OTHERS = [
    FILE,
    f"{FILE}  reshard_after_forward: true\n  backward_prefetch: BACKWARD_PRE\n",
    "model: a\nfsdp_config:\n  sharding_strategy: FULL_SHARD\n",  # somebody's own
]


@pytest.mark.parametrize("text", OTHERS)
def test_others_stay(text: str) -> None:
    assert not decided(text, {})
