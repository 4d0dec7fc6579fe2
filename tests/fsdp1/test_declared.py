"""Models that only their types tell of."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROJECT = """\
from typing import Annotated, Optional, Union

import torch
import torch.distributed.fsdp as fsdp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

from types_of_models import Sharded

Wrapped = Union[FSDP, DDP]
Plain = Union[nn.Module, DDP]


def build(net):
    return FSDP(net)


{uses}
"""
TYPES = """\
from torch.distributed.fsdp import FullyShardedDataParallel

Sharded = FullyShardedDataParallel | None
"""


def clipped(uses: str) -> bool:
    """Whether FSDP1's clipping is rewritten in code that nothing calls."""
    files = {"example.py": PROJECT.format(uses=uses), "types_of_models.py": TYPES}
    result, after = migrate(files)
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    return "clip_grad_norm_(model.parameters(), 1.0)" in after["example.py"].replace("self.", "")


@pytest.mark.parametrize(
    "annotation",
    [
        "FSDP",
        '"FSDP"',
        "fsdp.FullyShardedDataParallel",
        '"fsdp.FullyShardedDataParallel"',
        "Optional[FSDP]",
        "FSDP | None",
        '"FSDP | None"',
        "Union[FSDP, DDP]",
        'Optional["FSDP"]',
        '"Optional[FSDP]"',
        'Annotated[FSDP, "sharded"]',
        "Wrapped",
        "Sharded",
    ],
)
@pytest.mark.parametrize("default", ["", " = None"])
def test_a_parameter_of_that_type_is_a_model(annotation: str, default: str) -> None:
    assert clipped(f"def clip(model: {annotation}{default}):\n    model.clip_grad_norm_(1.0)")


@pytest.mark.parametrize(
    "annotation",
    [
        "nn.Module",
        "DDP",
        "Plain",
        "list[FSDP]",
        "dict[str, FSDP]",
        "type[FSDP]",
        '"DDP"',
        "Missing",
    ],
)
def test_a_parameter_of_another_type_is_not(annotation: str) -> None:
    uses = f"def state_of(model: {annotation}):\n    return model.state_dict()"
    files = {"example.py": PROJECT.format(uses=uses), "types_of_models.py": TYPES}
    _, after = migrate(files)
    assert "return model.state_dict()" in after["example.py"]


def test_a_model_that_is_kept_in_an_attribute() -> None:
    assert clipped(
        "class Clipper:\n"
        "    def __init__(self, wrapped: FSDP):\n"
        "        self.model = wrapped\n\n"
        "    def clip(self):\n"
        "        self.model.clip_grad_norm_(1.0)"
    )


def test_what_callers_pass_counts_more_than_the_type() -> None:
    uses = (
        "def state_of(model: FSDP):\n    return model.state_dict()\n\n\n"
        "state = state_of(nn.Linear(2, 2))"
    )
    files = {"example.py": PROJECT.format(uses=uses), "types_of_models.py": TYPES}
    _, after = migrate(files)
    assert "return model.state_dict()" in after["example.py"]


def test_a_project_of_fsdp2_alone_is_left_alone() -> None:
    uses = "def clip(model: FSDPModule):\n    return model.state_dict()\n"
    source = f"from torch.distributed.fsdp import FSDPModule\n\n\n{uses}"
    result, _ = migrate({"example.py": source})
    assert not result.decisions
