"""What a class made by ``attrs`` is given for its fields is followed, as with a dataclass."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
{imports}
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


{decorator}
class Trainer:
    model: torch.nn.Module
    steps: int = 1

    def clip(self):
        self.model.clip_grad_norm_(1.0)


def main(net):
    model = FSDP(net)
    Trainer({given}).clip()
"""
CLIPS = "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)"


@pytest.mark.parametrize(
    ("imports", "decorator"),
    [
        ("from attr import define", "@define(slots=False)"),
        ("import attr", "@attr.define"),
        ("import attrs", "@attrs.frozen"),
        ("from attrs import mutable", "@mutable"),
        ("from dataclasses import dataclass", "@dataclass"),
    ],
)
@pytest.mark.parametrize("given", ["model=model", "model, 3"])
def test_a_model_in_a_field_is_followed(imports: str, decorator: str, given: str) -> None:
    source = PROGRAM.format(imports=imports, decorator=decorator, given=given)
    assert CLIPS in rewritten(source)
    assert "TODO" not in rewritten(source)


@pytest.mark.parametrize("given", ["model=other", "other, 3"])
def test_another_model_is_not(given: str) -> None:
    source = PROGRAM.format(imports="import attr", decorator="@attr.define", given=given)
    source = source.replace("self.model.clip_grad_norm_(1.0)", "return self.model.state_dict()")
    made = source.replace("    model = FSDP", "    other = torch.nn.Linear(8, 8)\n    model = FSDP")
    assert "return self.model.state_dict()" in rewritten(made)
    assert "get_model_state_dict" in rewritten(made.replace(given, given.replace("other", "model")))
