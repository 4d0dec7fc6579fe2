"""Branches for FSDP1's version that leave alone what is offloaded to the CPU."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
from torch.distributed.fsdp import CPUOffload, FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


def load(model, device):
    if version(model) == 2:
        model.to(device)
    elif version(model) == 1:
        for handle in model._all_handles:
            {spare}handle.flat_param_to(device)


def build(net, device):
    model = FSDP(net{offload})
    load(model, device)
    return model
"""
SPARE = "if not handle._offload_params: "
OFFLOAD = ", cpu_offload=CPUOffload(offload_params=True)"


@pytest.mark.parametrize(
    ("spare", "offload", "is_marked"),
    [(SPARE, OFFLOAD, True), (SPARE, "", False), ("", OFFLOAD, False)],
)
def test_what_is_offloaded_is_left_alone(spare: str, offload: str, is_marked: bool) -> None:
    text = rewritten(PROGRAM.format(spare=spare, offload=offload))
    assert "flat_param_to" not in text
    assert ("must leave it alone" in " ".join(text.split("#"))) is is_marked
