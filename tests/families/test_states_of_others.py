"""States that are asked for in a context for kinds of a model's state, of what is no model."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

SOURCE = """\
import torch
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.optim.lr_scheduler import StepLR


class Meter:
    def state_dict(self):
        return {}


def main(net, other, half):
    model = FSDP(net, use_orig_params=True)
    opt = torch.optim.Adam(model.parameters())
    THING
    config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, config):
        state = model.state_dict()
        rest = thing.state_dict()
    torch.save([state, rest], "out.pt")
"""


@pytest.mark.parametrize(
    "thing",
    [
        "thing = StepLR(opt, 1)",
        "thing = torch.amp.GradScaler('cpu')",
        "thing = torch.optim.lr_scheduler.ConstantLR(opt) if half else None",
    ],
)
def test_what_torch_makes_has_its_own_by_any_name(thing: str) -> None:
    text = rewritten(SOURCE.replace("THING", thing))
    assert "with " not in text
    assert "fsdp2_support" not in text
    assert "rest = thing.state_dict()" in text


@pytest.mark.parametrize(
    "thing",
    [
        "thing = other",
        "thing = torch.compile(other)",
        "thing = torch.nn.Linear(2, 2) if half else StepLR(opt, 1)",
        "thing = other if half else None",
    ],
)
def test_what_may_be_a_model_keeps_its_context(thing: str) -> None:
    assert "with state_dict_type(model" in rewritten(SOURCE.replace("THING", thing))
