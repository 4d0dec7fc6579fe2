"""FSDP101: bases without a dictionary in front of ``nn.Module``: torch derives no class then."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
from abc import ABC
import abc
from typing import Generic, Protocol, TypeVar

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

T = TypeVar("T")


class Mixin:
    pass


class Named(ABC):
    pass


class Block(nn.Module):
    pass


class Model(BASES):
    pass


class Derived(Model):
    pass


model = FSDP(MADE())
"""


def migrated(bases: str, made: str = "Model") -> tuple[list[Outcome], str]:
    source = PROGRAM.replace("BASES", bases).replace("MADE", made)
    result, after = migrate({"train.py": source})
    orders = [d.outcome for d in result.decisions if d.site.construct.name == "order of bases"]
    return orders, after["train.py"]


@pytest.mark.parametrize("made", ["Model", "Derived"])
@pytest.mark.parametrize(
    ("bases", "new"),
    [
        ("ABC, nn.Module", "nn.Module, ABC"),
        ("abc.ABC, torch.nn.Module", "torch.nn.Module, abc.ABC"),
        ("Generic[T], nn.Module", "nn.Module, Generic[T]"),
        ("Protocol, Mixin, Block", "Block, Mixin, Protocol"),
    ],
)
def test_the_class_of_modules_stands_first(bases: str, new: str, made: str) -> None:
    orders, after = migrated(bases, made)
    assert orders == [Outcome.REWRITTEN]
    assert f"class Model({new}):" in after


def test_a_class_of_the_projects_may_override_what_modules_have() -> None:
    orders, after = migrated("Named, nn.Module")
    assert orders == [Outcome.LEFT]
    assert "TODO(fsdp-migrate FSDP101)" in after


@pytest.mark.parametrize(
    "bases",
    ["nn.Module, ABC", "Mixin, nn.Module", "nn.Module, Generic[T]", "Mixin, ABC, nn.Module"],
)
def test_others_stay(bases: str) -> None:
    orders, after = migrated(bases)
    assert not orders
    assert f"class Model({bases}):" in after


def test_a_class_that_is_never_sharded_stays() -> None:
    orders, after = migrated("ABC, nn.Module", "Block")
    assert not orders
    assert "class Model(ABC, nn.Module):" in after
