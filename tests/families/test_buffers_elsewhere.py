"""Buffers of models in files that FSDP1 never comes to, and that are read only when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session

TRAIN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

from model import make


def main():
    half = MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    model = FSDP(make(), mixed_precision=half)
    return model
"""
MODEL = """\
import torch
from torch import nn
from tables import Tables


class Model({base}):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        {line}


def make():
    return Model()
"""
TABLES = """\
import torch
from torch import nn


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("gain", torch.ones(4))


def give(module):
    module.register_buffer("gain", torch.ones(4))
"""
CAST = "buffer.data = buffer.to(torch.bfloat16)"


def rewritten(tree: Path, base: str, line: str) -> str:
    files = {"train": TRAIN, "model": MODEL.format(base=base, line=line), "tables": TABLES}
    for name, text in files.items():
        (tree / f"{name}.py").write_text(text)
    changes = session.run([tree], quiet=True).result.changes
    return changes[tree / "train.py"].decode()


@pytest.mark.parametrize(
    ("base", "line"),
    [
        ("nn.Module", 'self.register_buffer("gain", torch.ones(4))'),
        ("nn.Module", 'self.register_buffer("gain", torch.ones(4), persistent=False)'),
        ("nn.Module", "self.inner = Tables()"),
        ("Tables", "pass"),
    ],
)
def test_buffers_in_a_file_without_fsdp_are_cast(tmp_path: Path, base: str, line: str) -> None:
    assert CAST in rewritten(tmp_path, base, line)


@pytest.mark.parametrize(
    "line",
    ["pass", 'self.register_buffer("ids", torch.arange(4, dtype=torch.long))'],
)
def test_a_model_without_float_buffers_casts_none(tmp_path: Path, line: str) -> None:
    """Although another class of a file that nobody reads has some."""
    assert CAST not in rewritten(tmp_path, "nn.Module", line)
