"""Settings that a sharded model keeps are no modules: questions for their classes stay."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
from dataclasses import dataclass
from pathlib import Path

import draccus
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import always_wrap_policy


@dataclass
class Settings(BASE):
    output: Path | None = None

    def kind(self):
        return KINDS.name_of(self.__class__)

    def exists(self):
        return isinstance(self.output, Path) and self.output.is_dir()


class Net(nn.Module):
    def __init__(self, settings, dim):
        super().__init__()
        self.settings = settings
        self.layer = nn.Linear(dim, dim)

    @classmethod
    def load(cls, dim):
        return cls(Settings(output=Path("x")), dim)

    def forward(self, x):
        return self.layer(x)


def build(dim):
    net = Net.load(dim)
    return FSDP(net, auto_wrap_policy=always_wrap_policy)
"""
HANDED_ON = "FSDP413"


@pytest.mark.parametrize("base", ["draccus.ChoiceRegistry", "object"])
def test_settings_are_no_modules(base: str) -> None:
    text = rewritten(PROGRAM.replace("BASE", base))
    assert "fully_shard(net)" in text
    assert "isinstance(self.output, Path) and self.output.is_dir()" in text
    assert HANDED_ON not in text


def test_a_dataclass_that_is_a_module_is_one() -> None:
    text = rewritten(PROGRAM.replace("BASE", "nn.Module"))
    assert HANDED_ON in text
    assert "isinstance(self.output, Path) and self.output.is_dir()" in text


def test_a_plain_class_may_be_a_base_of_modules() -> None:
    text = rewritten(PROGRAM.replace("@dataclass\n", "").replace("BASE", "draccus.Mixin"))
    assert HANDED_ON in text
