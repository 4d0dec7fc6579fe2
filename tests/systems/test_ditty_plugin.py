"""A trainer in the manner of ditty under accelerate: a plugin in the program, the file beside it,
and the line that starts both; see docs/systems.md."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fsdp_migrate.planning.outcome import Outcome
from tests.configurations import running
from tests.helpers.commandline import Command
from tests.helpers.migrating import files, migrate
from tests.training.programs import FIXTURES, REPOSITORY

PROGRAM = FIXTURES / "systems" / "ditty_plugin"
LAUNCHED = REPOSITORY / "tests" / "configurations" / "program" / "launched.py"
ENTRY = """\
import runpy
from pathlib import Path

from launched import read

read(Path("conf/fsdp.yaml"))
runpy.run_path("pipeline.py", run_name="__main__")
"""
OBSOLETE = ("backward_prefetch", "forward_prefetch", "use_orig_params", "sync_module_states")
SNIPPET = """\
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    reshard_after_forward=True,
    cpu_ram_efficient_loading=True,
    transformer_layer_cls_to_wrap=["ResidualBlock", "TransformerBlock"],
)
accelerator = Accelerator(fsdp_plugin=plugin)
"""


@pytest.fixture
def after(tmp_path: Path, run: Command) -> Path:
    """The program after a rewrite of all of it."""
    tree = tmp_path / "after"
    shutil.copytree(PROGRAM, tree, ignore=shutil.ignore_patterns("__pycache__"))
    answer = run("rewrite", tree, "--allow-dirty")
    assert answer.code == 0, answer.out + answer.err
    return tree


def made(tree: Path) -> tuple[Any, list[str]]:
    """The plugin of a program that its own file launched, and what accelerate warned of."""
    config = running.yaml.safe_load((tree / "conf" / "fsdp.yaml").read_text(encoding="utf-8"))
    make = runpy.run_path(str(tree / "pipeline.py"))["make_plugin"]
    warning = mock.patch("accelerate.utils.dataclasses.logger")
    with running.in_environment(running.environment(config)), warning as logger:
        plugin = make()
    return plugin, [str(call.args[0]) for call in logger.warning.call_args_list]


def named(*replaced: tuple[str, str]) -> list[tuple[Outcome, str]]:
    """What is said of the plugin where words of the program are others, and what it becomes."""
    before = files(PROGRAM)
    for old, new in replaced:
        assert before["pipeline.py"].count(old) == 1
        before["pipeline.py"] = before["pipeline.py"].replace(old, new)
    result, text = migrate(before)
    return [(d.outcome, text["pipeline.py"]) for d in result.decisions if d.code == "FSDP511"]


def test_every_obsolete_field_of_plugin_and_file_goes_with_a_note(run: Command) -> None:
    said = run("check", PROGRAM).out
    for name in OBSOLETE:
        assert f"without {name}" in said
        assert f"fsdp_{name} -> gone" in said
    assert "without limit_all_gathers" in said


def test_the_real_plugin_is_made_without_a_warning(after: Path) -> None:
    plugin, warned = made(after)
    assert warned == []
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.transformer_cls_names_to_wrap == ["ResidualBlock", "TransformerBlock"]
    for name in OBSOLETE:
        text = (after / "pipeline.py").read_text() + (after / "conf" / "fsdp.yaml").read_text()
        assert name not in text


def test_it_would_warn_of_what_was_there(tmp_path: Path) -> None:
    """Version 2 of what the program has, but for the prefetch that stops it."""
    shutil.copytree(PROGRAM, tmp_path / "naive")
    program = tmp_path / "naive" / "pipeline.py"
    source = program.read_text(encoding="utf-8").replace("forward_prefetch=False", "fsdp_version=2")
    strategy = 'sharding_strategy="FULL_SHARD"'
    source = source.replace(strategy, f"{strategy}, reshard_after_forward=True")
    program.write_text(source, encoding="utf-8")
    _, warned = made(tmp_path / "naive")
    assert len(warned) == 1


@pytest.mark.parametrize(
    ("spelled", "reshard"),
    [
        ('"FULL_SHARD"', True),
        ('"1"', True),
        ("1", True),
        ("ShardingStrategy.FULL_SHARD", True),
        ('"SHARD_GRAD_OP"', False),
        ('"shard_grad_op"', False),
        ('"2"', False),
        ("2", False),
        ("ShardingStrategy.SHARD_GRAD_OP", False),
    ],
)
def test_a_strategy_in_every_spelling_is_the_right_truth_value(spelled: str, reshard: bool) -> None:
    enum = ("from torch import nn\n", f"from torch import nn\n{ENUM}")
    [(outcome, text)] = named(('"FULL_SHARD"', spelled), enum)
    assert outcome is Outcome.REWRITTEN
    assert f"reshard_after_forward={reshard}," in text


ENUM = "from torch.distributed.fsdp import ShardingStrategy\n"


@pytest.mark.parametrize("name", ["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "NO_SHARD"])
def test_hybrids_and_no_shard_are_left(name: str) -> None:
    [(outcome, text)] = named(('"FULL_SHARD"', f'"{name}"'))
    assert outcome is Outcome.LEFT
    assert f'sharding_strategy="{name}"' in text
    assert "TODO(fsdp-migrate FSDP511)" in text


def test_a_field_that_the_plugin_has_not_and_a_policy_that_lacks_are_named() -> None:
    result, _ = migrate({"a.py": SNIPPET})
    [decision] = [d for d in result.decisions if d.code == "FSDP511"]
    assert decision.outcome is Outcome.LEFT
    assert "transformer_layer_cls_to_wrap" in decision.message
    assert decision.help.startswith("it is called transformer_cls_names_to_wrap")
    assert 'only beside auto_wrap_policy="transformer_based_wrap"' in decision.help


def test_names_without_a_policy_pick_no_unit() -> None:
    from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    plugin = running.plugin({}, fsdp_version=2, transformer_cls_names_to_wrap=["Linear"])
    plugin.set_auto_wrap_policy(model)
    assert fsdp2_prepare_auto_wrap_policy(plugin, model) is None


@pytest.mark.train
def test_plugin_and_file_train_the_same(after: Path, run: Command) -> None:
    before = after.with_name("before")
    shutil.copytree(PROGRAM, before, ignore=shutil.ignore_patterns("__pycache__"))
    for tree in (before, after):
        shutil.copy(LAUNCHED, tree)
        (tree / "entry.py").write_text(ENTRY, encoding="utf-8")
    options = ("--device", "simulate", "--no-twin", "--before", before, "--after", after)
    said = run("verify", *options, "entry.py", "--", "state")
    assert "VERDICT  PASS" in said.out, said.out + said.err


PACKED = """\
import torch
from transformers import BitsAndBytesConfig

config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_storage=torch.{dtype})
"""


@pytest.mark.parametrize(
    ("dtype", "precision", "is_told"),
    [
        ("float16", "bf16", True),
        ("float32", "fp16", True),
        ("bfloat16", "bf16", False),
        ("float16", "fp16", False),
        ("float16", "no", False),
    ],
)
def test_a_precision_in_the_file_that_is_not_that_of_the_storage_is_told(
    tmp_path: Path, run: Command, dtype: str, precision: str, is_told: bool
) -> None:
    """Packed weights, whose bytes both versions would cast."""
    shutil.copytree(PROGRAM, tmp_path / "a", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "a" / "model.py").write_text(PACKED.format(dtype=dtype), encoding="utf-8")
    file = tmp_path / "a" / "conf" / "fsdp.yaml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not line.startswith("mixed_precision")]
    file.write_text("".join([*kept, f"mixed_precision: {precision}\n"]), encoding="utf-8")
    said = " ".join(run("check", tmp_path / "a").out.split())
    told = f"quantised weights are stored as {dtype} in" in said
    assert told == is_told, said
