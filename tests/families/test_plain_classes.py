"""Classes that a model keeps and that are no modules: their names are what they were."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Base:
    def kind(self):
        return self.__class__.__qualname__ + ".pt"


class Kept(BASES):
    def __init__(self, value):
        self.value = value


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept = Kept(1.0)


def build():
    return FSDP(Net())
"""
PLAIN = "        return self.__class__.__qualname__ + "


@pytest.mark.parametrize("bases", ["Base", "Base, metaclass=type"])
def test_a_class_of_the_projects_own_keeps_its_name(bases: str) -> None:
    _, after = migrate({"example.py": PROGRAM.replace("BASES", bases)})
    assert "fully_shard(" in after["example.py"]
    assert PLAIN in after["example.py"]


@pytest.mark.parametrize("bases", ["Base, nn.Module", "Base, Layer", "nn.Linear, Base"])
def test_a_module_that_is_derived_from_it_loses_the_prefix(bases: str) -> None:
    source = PROGRAM.replace("BASES", bases).replace(
        "class Base:", "from layers import Layer\n\n\nclass Base:"
    )
    _, after = migrate({"example.py": source})
    assert 'return self.__class__.__qualname__.removeprefix("FSDP") + ' in after["example.py"]
