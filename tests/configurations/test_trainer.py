"""transformers' Trainer trains the same before and after: ``verify`` in its simulation."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.configurations.frameworks import transformers
from fsdp_migrate.configurations.settings import Setting, Value
from tests.configurations.running import applied
from tests.configurations.writing import unmarked, write
from tests.helpers.migrating import rewritten

pytestmark = pytest.mark.train

PROGRAM = Path(__file__).with_name("trainer")
LAYERS = {"transformer_layer_cls_to_wrap": "LlamaDecoderLayer", "version": 1}


def verified(scratch: Path, given: dict[str, Value], *options: str, save: bool = False) -> str:
    """What ``verify`` says of the program with the settings before and after."""
    before = {name: Setting(name, value) for name, value in {**LAYERS, **given}.items()}
    after = applied(before, transformers.migrate(before))
    assert after["version"].value == 2
    for side, settings in (("before", before), ("after", after)):
        shutil.copytree(PROGRAM, scratch / side, ignore=shutil.ignore_patterns("__pycache__"))
        values = {name: setting.value for name, setting in settings.items()}
        fsdp = values.pop("fsdp")
        text = f"FSDP = {fsdp!r}\nCONFIG = {values!r}\n"
        (scratch / side / "settings.py").write_text(text, encoding="utf-8")
    return ran(scratch, *options, "train.py", *(["--", "save"] if save else []))


@pytest.mark.parametrize(
    "given",
    [
        {"fsdp": "full_shard auto_wrap", "backward_prefetch": "backward_pre"},
        {"fsdp": "full_shard auto_wrap", "state_dict_type": "SHARDED_STATE_DICT"},
        {"fsdp": "shard_grad_op auto_wrap"},
        {"fsdp": "shard_grad_op auto_wrap", "state_dict_type": "SHARDED_STATE_DICT"},
        {"fsdp": "full_shard auto_wrap offload"},
        {"fsdp": "shard_grad_op auto_wrap offload", "state_dict_type": "SHARDED_STATE_DICT"},
    ],
    ids=["full", "full_sharded", "zero2", "zero2_sharded", "offload", "zero2_offload_sharded"],
)
def test_trains_the_same(tmp_path: Path, given: dict[str, Value]) -> None:
    said = verified(tmp_path, {**given, "cpu_ram_efficient_loading": True}, save=True)
    assert "VERDICT  PASS" in said, said
    assert re.search(r"saved files +PASS +out/", said), said


def test_buffers_under_mixed_precision_are_for_review(tmp_path: Path) -> None:
    """Rotary frequencies are float32 under version 2, and no longer bfloat16."""
    given = {"fsdp": "full_shard auto_wrap", "cpu_ram_efficient_loading": True}
    said = " ".join(verified(tmp_path, given, "--env", "BF16=1").split())
    assert "model.rotary_emb.inv_freq is bfloat16 before and float32 after" in said, said


def test_a_call_trains_the_same(tmp_path: Path) -> None:
    """The settings in the call itself, which FSDP521 writes."""
    source = (PROGRAM / "train.py").read_text(encoding="utf-8")
    config = {**LAYERS, "cpu_ram_efficient_loading": True, "use_orig_params": True}
    source = source.replace("from settings import CONFIG, FSDP\n", "")
    source = source.replace("fsdp=FSDP", 'fsdp="shard_grad_op auto_wrap"')
    source = source.replace("fsdp_config=CONFIG", f"fsdp_config={config!r}")
    after = rewritten(source)
    assert '"reshard_after_forward": False' in after
    said = verified_programs(tmp_path, source, after)
    assert "VERDICT  PASS" in said, said


def verified_programs(scratch: Path, before: str, after: str) -> str:
    for side, text in (("before", before), ("after", after)):
        (scratch / side).mkdir()
        (scratch / side / "train.py").write_text(text, encoding="utf-8")
    return ran(scratch, "train.py", "--", "save")


def ran(scratch: Path, *options: str) -> str:
    command = [sys.executable, "-m", "fsdp_migrate", "verify", "--device", "simulate"]
    command += ["--no-twin", "--before", "before", "--after", "after", *options]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("installed", [(), (5, 24, 0)])
@pytest.mark.parametrize("given", ["shard_grad_op", "'shard_grad_op auto_wrap'"])
def test_transformers_reads_the_flags_that_are_written(
    tmp_path: Path, given: str, installed: tuple[int, ...]
) -> None:
    """Its ``--fsdp`` is on without a value, and stops at ``true``."""
    before = f"torchrun t.py --fsdp {given} --fsdp_transformer_layer_cls_to_wrap 'Layer'\n"
    written = write({"a.sh": before}, None, installed=installed).text
    assert ("--fsdp --fsdp_config" in written) == bool(installed)
    flags = shlex.split(unmarked(written))[2:]
    program = (
        "import sys; from transformers import HfArgumentParser, TrainingArguments\n"
        "args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(sys.argv[1:])\n"
        "print(args.fsdp, [args.fsdp_config[k] for k in KEYS])\n"
    ).replace("KEYS", "('version', 'reshard_after_forward', 'transformer_layer_cls_to_wrap')")
    command = [sys.executable, "-c", program, "--output_dir", str(tmp_path), *flags]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == "True [2, False, ['Layer']]\n", ran.stderr
