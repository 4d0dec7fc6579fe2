"""Classes of modules that a policy asks for: once those are sharded, they are others."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

SOURCE = """\
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, _or_policy, lambda_auto_wrap_policy

from layers import Block, Layer


def build(model, flag):
    return FSDP(model, auto_wrap_policy={policy})
"""
OTHER = "functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m.big)"


@pytest.mark.parametrize("cls", ["type(model.layers[-1])", "model.layers[-1].__class__"])
def test_they_are_computed_once(cls: str) -> None:
    policy = f"ModuleWrapPolicy([{cls}])"
    assert f"    wrap_classes = {cls}\n    for module in" in rewritten(SOURCE.format(policy=policy))
    either = rewritten(SOURCE.format(policy=f"{policy} if flag else {OTHER}"))
    assert "    units = [module for module in" in either  # they are listed before one is sharded
    both = f"functools.partial(_or_policy, policies=[{policy}, {OTHER}])"
    assert "    shard_by_policy(\n" in rewritten(SOURCE.format(policy=both))


@pytest.mark.parametrize("cls", ["Layer", "Block, Layer", "model.layer_class"])
def test_classes_that_are_named_are_asked_for_where_they_are(cls: str) -> None:
    text = rewritten(SOURCE.format(policy=f"ModuleWrapPolicy([{cls}])"))
    assert "wrap_classes" not in text
    assert "isinstance(module, " in text
