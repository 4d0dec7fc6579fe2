"""Constructor calls at which FSDP1 itself stops: left or marked, with what is wrong in them."""

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, rewritten, worst

HEAD = """\
import functools
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
    always_wrap_policy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)

from models import Block


def build(net):
    return FSDP(net, auto_wrap_policy=POLICY)
"""


@pytest.mark.parametrize(
    "policy",
    [
        "transformer_auto_wrap_policy",
        "lambda_auto_wrap_policy",
        "ModuleWrapPolicy",
        "ModuleWrapPolicy()",
        "partial(transformer_auto_wrap_policy)",
        "functools.partial(transformer_auto_wrap_policy, layer_cls={Block})",
        "partial(lambda_auto_wrap_policy, fn=lambda m: isinstance(m, Block))",
        "transformer_auto_wrap_policy(net)",
        "transformer_auto_wrap_policy({Block})",
        "transformer_auto_wrap_policy(net, True, 0, {Block})",
        "size_based_auto_wrap_policy(net, recurse=True, nonwrapped_numel=0)",
    ],
)
def test_a_policy_that_fsdp1_stops_at_is_left_with_what_is_wrong(policy: str) -> None:
    result, after = migrate({"train.py": HEAD.replace("POLICY", policy)})
    assert worst(result) is Outcome.LEFT
    assert "FSDP1" in after["train.py"].partition("# TODO(fsdp-migrate FSDP102)")[2]
    assert "return FSDP(net" in after["train.py"]


@pytest.mark.parametrize(
    "policy",
    [
        "transformer_auto_wrap_policy(net, transformer_layer_cls={Block})",
        "transformer_auto_wrap_policy(transformer_layer_cls={Block})",
        "transformer_auto_wrap_policy(module=net, transformer_layer_cls={Block})",
        "lambda_auto_wrap_policy(net, lambda_fn=lambda module: isinstance(module, Block))",
        "size_based_auto_wrap_policy(net, min_num_params=100)",
    ],
)
def test_a_policy_that_is_called_is_taken_for_its_partial_and_marked(policy: str) -> None:
    result, after = migrate({"train.py": HEAD.replace("POLICY", policy)})
    assert worst(result) is Outcome.REVIEW
    assert "The policy is called here" in after["train.py"]
    assert "fully_shard(module)" in after["train.py"]
    assert "wrap_policy" not in after["train.py"]


@pytest.mark.parametrize(
    "policy",
    [
        "partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})",
        "partial(lambda_auto_wrap_policy, lambda_fn=lambda module: isinstance(module, Block))",
        "partial(size_based_auto_wrap_policy, min_num_params=100)",
        "size_based_auto_wrap_policy",
        "always_wrap_policy",
        "ModuleWrapPolicy({Block})",
        "ModuleWrapPolicy(module_classes={Block})",
        "None",
    ],
)
def test_a_policy_that_fsdp1_takes_is_not_doubted(policy: str) -> None:
    result, after = migrate({"train.py": HEAD.replace("POLICY", policy)})
    assert worst(result) is Outcome.REWRITTEN
    assert "TODO" not in after["train.py"]


def test_a_called_policy_is_marked_in_the_run_time_form() -> None:
    policy = "transformer_auto_wrap_policy(net, transformer_layer_cls={Block})"
    source = HEAD.replace("def build(net)", "def build(net, **given)").replace(
        "POLICY)", "POLICY, **given)"
    )
    result, after = migrate({"train.py": source.replace("POLICY", policy)})
    assert worst(result) is Outcome.REVIEW
    assert "The policy is called here, which FSDP1 stops at" in after["train.py"]


MESH = """\
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net):
    group = dist.new_group([0, 1])
    mesh = init_device_mesh("cuda", (2,))
    return FSDP(net, GIVEN)
"""


def test_a_group_and_a_mesh_are_refused_together() -> None:
    source = MESH.replace("GIVEN", "process_group=group, device_mesh=mesh")
    result, after = migrate({"train.py": source})
    assert worst(result) is Outcome.LEFT
    assert "Both process_group and device_mesh are given" in after["train.py"]


def test_of_a_group_and_a_mesh_that_may_be_none_the_running_program_takes_one() -> None:
    source = MESH.replace("def build(net)", "def build(net, group, mesh)")
    source = source.replace("    group = dist.new_group([0, 1])\n", "")
    source = source.replace('    mesh = init_device_mesh("cuda", (2,))\n', "")
    source = source.replace("GIVEN", "process_group=group, device_mesh=mesh")
    result, after = migrate({"train.py": source})
    assert worst(result) is Outcome.REWRITTEN
    assert "shard(net, process_group=group, device_mesh=mesh)" in after["train.py"]


@pytest.mark.parametrize(
    "given",
    [
        "process_group=group",
        "device_mesh=mesh",
        "process_group=None, device_mesh=mesh",
        "process_group=group, device_mesh=None",
    ],
)
def test_one_of_a_group_and_a_mesh_is_written_out(given: str) -> None:
    after = rewritten(MESH.replace("GIVEN", given))
    assert "fully_shard(net, mesh=mesh" in after
    assert "TODO" not in after


LOADED = """\
import argparse

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def load(name, load_in_8bit):
    return AutoModelForCausalLM.from_pretrained(name)


def build(name, args):
    model = MODEL
    return FSDP(model)
"""


@pytest.mark.parametrize(
    "model",
    [
        "AutoModelForCausalLM.from_pretrained(name, load_in_8bit=True)",
        "AutoModelForCausalLM.from_pretrained(name, **{'load_in_8bit': True})",
        "AutoModelForCausalLM.from_pretrained(name, "
        "quantization_config=BitsAndBytesConfig(load_in_8bit=True))",
    ],
)
def test_a_model_in_8_bits_is_marked(model: str) -> None:
    result, after = migrate({"train.py": LOADED.replace("MODEL", model)})
    assert worst(result) is Outcome.REVIEW
    assert after["train.py"].count("8-bit weights are integers") == 1


@pytest.mark.parametrize(
    "model",
    [
        "AutoModelForCausalLM.from_pretrained(name, load_in_8bit=False)",
        "AutoModelForCausalLM.from_pretrained(name, load_in_8bit=args.eight)",
        "AutoModelForCausalLM.from_pretrained(name)",
        "load(name, load_in_8bit=True)",
        "AutoModelForCausalLM.from_pretrained(name, "
        "**({'load_in_8bit': True} if args.eight else {}))",
        "AutoModelForCausalLM.from_pretrained(name, quantization_config=("
        "BitsAndBytesConfig(load_in_8bit=True) if args.eight else None))",
    ],
)
def test_other_models_are_not(model: str) -> None:
    assert "8-bit" not in rewritten(LOADED.replace("MODEL", model))


CHOSEN = """def quantization(kind):
    if kind == "4bit":
        return None
    return BitsAndBytesConfig(load_in_8bit=True)


"""


@pytest.mark.parametrize(
    ("function", "marked"),
    [(CHOSEN, False), (CHOSEN.replace('if kind == "4bit":\n        return None', "pass"), True)],
)
def test_a_kind_of_quantization_that_is_chosen_is_for_runs_without_fsdp1(
    function: str, marked: bool
) -> None:
    loaded = "AutoModelForCausalLM.from_pretrained(name, quantization_config=quantization(args.q))"
    source = LOADED.replace("def load", f"{function}def load").replace("MODEL", loaded)
    assert ("8-bit" in rewritten(source)) is marked
