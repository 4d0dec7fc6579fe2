"""Models that are taken out of named tuples by their places."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, worst

SOURCE = """\
import collections
import typing
from collections import namedtuple
from typing import Any, NamedTuple

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Pieces(NamedTuple):
    model: Any
    optimizer: Any
    steps: int = 0


Pair = namedtuple("Pair", ["model", "optimizer"])
Spelled = collections.namedtuple("Spelled", "model, optimizer")
Typed = typing.NamedTuple("Typed", [("model", Any), ("optimizer", Any)])


def build(net):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return {made}


def main(net):
    pieces = build(net)
    {taken}
    torch.save(model.state_dict(), "model.pt")
"""
THREE = "(model, optimizer, _) = pieces"


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        ("Pieces(model, optimizer)", THREE),
        ("Pieces(model, optimizer, 3)", THREE),
        ("Pieces(optimizer=optimizer, model=model)", "[model, optimizer, steps] = pieces"),
        ("Pieces(model, optimizer)", "model = pieces[0]"),
        ("Pieces(model, optimizer)", "model, *rest = pieces"),
        ("Pair(model, optimizer)", "model, optimizer = pieces"),
        ("Spelled(optimizer=optimizer, model=model)", "model, optimizer = pieces"),
        ("Typed(model, optimizer)", "model, _ = pieces"),
    ],
)
def test_the_model_is_known(made: str, taken: str) -> None:
    result, after = migrate({"train.py": SOURCE.format(made=made, taken=taken)})
    assert worst(result) is Outcome.REWRITTEN
    assert "get_model_state_dict(model" in after["train.py"]


@pytest.mark.parametrize(
    ("made", "taken"),
    [
        ("Pieces(optimizer, model)", THREE),
        ("Pair(*[model, optimizer])", "optimizer, model = pieces"),
    ],
)
def test_another_place_is_not(made: str, taken: str) -> None:
    _, after = migrate({"train.py": SOURCE.format(made=made, taken=taken)})
    assert "get_model_state_dict(model" not in after["train.py"]
