"""Activation checkpointing of models that are sharded already."""

from __future__ import annotations

import pytest
from packaging.version import Version

from fsdp_migrate.migration.engine import Options
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import functools
import logging
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

from layers import Block

logger = logging.getLogger(__name__)


"""
STRAIGHT = (
    HEAD
    + """def build(model, rank, other):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(model, auto_wrap_policy=policy)
    BETWEEN
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
    return model
"""
)
OLD = Options(target=Version("2.7"))


def found(source: str) -> tuple[Outcome, str]:
    result, after = migrate({"train.py": source}, OLD)
    (decision,) = [d for d in result.decisions if d.code == "FSDP117"]
    return decision.outcome, after["train.py"]


@pytest.mark.parametrize(
    "between",
    [
        "pass",
        'print("wrapped")',
        'logger.info("wrapped %s", rank)',
        'logging.info("wrapped")',
        'if rank == 0:\n        print("wrapped")',
        'if rank == 0:\n        logger.info("a")\n    else:\n        logger.info("b")',
        "dist.barrier()",
        "torch.cuda.empty_cache()",
        "started = torch.cuda.memory_allocated()",
    ],
)
def test_it_comes_first_behind_what_leaves_models_alone(between: str) -> None:
    outcome, after = found(STRAIGHT.replace("BETWEEN", between))
    assert outcome is Outcome.REWRITTEN
    assert after.index("apply_activation_checkpointing(model") < after.index("fully_shard(m")
    assert '"_checkpoint_wrapped_module"' in after


@pytest.mark.parametrize(
    "between",
    [
        "print(model)",
        "logger.info(str(model))",
        "other.prepare()",
        "torch.manual_seed(rank)",
        "torch.nn.init.zeros_(other.weight)",
        "if rank == 0:\n        return model",
        "if rank == 0:\n        other.prepare()",
        'with torch.no_grad():\n        print("wrapped")',
    ],
)
def test_it_stays_behind_what_may_do_something(between: str) -> None:
    outcome, after = found(STRAIGHT.replace("BETWEEN", between))
    assert outcome is Outcome.REVIEW
    assert after.index("fully_shard(m") < after.index("apply_activation_checkpointing(model")


HOLDING = (
    HEAD
    + """class Sharded(nn.Module):
    def __init__(self, net, **given):
        super().__init__()
        self.module = FSDP(net, **given)

    def forward(self, x):
        return self.module(x)


class Plain(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.module = net


def build(net, conf):
    if conf.sharded:
        model = Sharded(net, use_orig_params=True)
    else:
        model = net
    if conf.checkpointing:
        apply_activation_checkpointing(MODEL, check_fn=lambda m: isinstance(m, Block))
    return model
"""
)


@pytest.mark.parametrize("model", ["model", "model.module"])
def test_a_module_around_the_model_is_marked_as_well(model: str) -> None:
    outcome, after = found(HOLDING.replace("MODEL", model))
    assert outcome is Outcome.REVIEW
    assert "TODO(fsdp-migrate FSDP117)" in after


def test_newer_torch_has_no_such_failure() -> None:
    newer = Options(target=Version("2.11"))
    result, after = migrate({"train.py": HOLDING.replace("MODEL", "model")}, newer)
    assert "FSDP117" in {d.code for d in result.decisions}
    assert "TODO(fsdp-migrate FSDP117)" not in after["train.py"]


@pytest.mark.parametrize("model", ["net", "Plain(net)", "nn.Sequential(net)"])
def test_a_module_without_sharded_parts_is_no_site(model: str) -> None:
    result, after = migrate({"train.py": HOLDING.replace("MODEL", model)}, OLD)
    assert "FSDP117" not in {d.code for d in result.decisions}
    assert f"apply_activation_checkpointing({model}, check_fn" in after["train.py"]


CAST = """
def build(model, args):
    mixed = MixedPrecision(torch.bfloat16, cast_forward_inputs=CASTS)
    return FSDP(model, mixed_precision=mixed)


def main(net, args):
    model = build(net, args)
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))
"""


@pytest.mark.parametrize(
    ("casts", "target", "is_marked"),
    [("True", "2.12", True), ("False", "2.12", False), ("True", "2.13", False)],
)
def test_inputs_that_are_not_cast_again_are_marked(
    casts: str, target: str, is_marked: bool
) -> None:
    head = HEAD.replace("FSDP\n", "FSDP, MixedPrecision\n", 1)
    source = head + CAST.replace("CASTS", casts)
    result, after = migrate({"train.py": source}, Options(target=Version(target)))
    (decision,) = [d for d in result.decisions if d.code == "FSDP117"]
    assert decision.outcome is (Outcome.REVIEW if is_marked else Outcome.REWRITTEN)
    assert ("before torch 2.13" in after["train.py"]) is is_marked


def test_models_of_a_library_are_taken_to_run_their_blocks_once() -> None:
    """Where one forward is followed by its backward, before torch 2.11."""
    trained = (
        "    for batch in other:\n"
        "        model(batch).sum().backward()\n"
        "    return model\n\n\n"
        "def main(rank, data):\n"
        "    from vision import make\n"
        "    return build(make(), rank, data)\n"
    )
    source = STRAIGHT.replace("BETWEEN", "print(model)").replace("    return model\n", trained)
    outcome, after = found(source)
    assert outcome is Outcome.REWRITTEN
    assert "TODO" not in after


ELSEWHERE = (
    HEAD
    + """def recompute(model):
    apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, Block))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.head = Block(), nn.Linear(2, 2)


def shard(model):
    for name in ("tower", "head"):
        setattr(model, name, FSDP(getattr(model, name)))
    return model


def main(conf):
    model = Two()
    BODY
    return model


main(None)
"""
)
FIRST = "    recompute(model)\n    model = shard(model)"


@pytest.mark.parametrize(
    "body",
    [
        "recompute(model)\n    model = shard(model)",
        "if conf.checkpoints:\n        recompute(model)\n    model = shard(model)",
        "prepare(model)\n    model = shard(model)",
        "both(model)",
    ],
)
def test_what_another_function_does_first_is_no_site(body: str) -> None:
    more = "def prepare(model):\n    recompute(model)\n\n\n"
    more += f"def both(model):\n{FIRST}\n    return model\n\n\n"
    source = ELSEWHERE.replace("def main", f"{more}def main").replace("BODY", body)
    result, after = migrate({"train.py": source}, OLD)
    assert "FSDP117" not in {d.code for d in result.decisions}
    assert "FSDP117" not in after["train.py"]


@pytest.mark.parametrize(
    "body",
    [
        "model = shard(model)\n    recompute(model)",
        "recompute(model)\n    model = shard(model)\n    recompute(model)",
        "for _ in conf:\n        recompute(model)\n        model = shard(model)",
        "both(model)\n    recompute(model)",
    ],
)
def test_what_another_function_may_do_later_is_one(body: str) -> None:
    more = f"def both(model):\n{FIRST}\n\n\n"
    source = ELSEWHERE.replace("def main", f"{more}def main").replace("BODY", body)
    outcome, after = found(source)
    assert outcome is Outcome.REVIEW
    assert "TODO(fsdp-migrate FSDP117)" in after


def test_another_script_that_does_it_later_counts() -> None:
    source = ELSEWHERE.replace("BODY", FIRST.strip())
    other = "from train import Two, recompute, shard\n\nmodel = shard(Two())\nrecompute(model)\n"
    result, _ = migrate({"train.py": source, "other.py": other}, OLD)
    assert "FSDP117" in {d.code for d in result.decisions}
