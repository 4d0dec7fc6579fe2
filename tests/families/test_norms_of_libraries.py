"""Which models of libraries get the branch that FSDP1 had for BatchNorm layers."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from transformers import AutoTokenizer
from LIBRARY import CLASS


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokenizer = AutoTokenizer.from_pretrained("a")
        self.inner = CLASS.from_pretrained("b")


model = FSDP(
    Model(),
    auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
    mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
)
"""


@pytest.mark.parametrize(
    ("library", "name", "has_norms"),
    [
        ("diffusers", "UNet2DConditionModel", False),
        ("diffusers", "FluxTransformer2DModel", False),
        ("transformers", "T5EncoderModel", False),
        ("transformers", "CLIPTextModel", False),
        ("diffusers", "VQModel", True),
        ("transformers", "AutoModel", True),
        ("timm", "create", True),
    ],
)
def test_where_the_library_may_have_them(library: str, name: str, *, has_norms: bool) -> None:
    after = rewritten(PROGRAM.replace("LIBRARY", library).replace("CLASS", name))
    assert ("_BatchNorm" in after) is has_norms
