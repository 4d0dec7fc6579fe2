"""Schedulers stay as they are, whatever makes them: they are torch.optim's, and no optimizers."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import rewritten

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Warmup(torch.optim.lr_scheduler.LRScheduler):
    pass


def load_scheduler(kind, optimizer):
    if kind == "warmup":
        return Warmup(optimizer)
    return torch.optim.lr_scheduler.LinearLR(optimizer)


def main(net, rank, path, resume):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = {made}
    if resume:
        checkpoint = torch.load(path)
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
    for _ in range(3):
        states = model.state_dict()
        optimizer_states = optimizer.state_dict()
        scheduler_states = scheduler.state_dict()
        if rank == 0:
            torch.save([states, optimizer_states, scheduler_states], path)
"""


@pytest.mark.parametrize(
    "made",
    [
        'load_scheduler("warmup", optimizer)',
        "Warmup(optimizer)",
        "torch.optim.lr_scheduler.LinearLR(optimizer)",
        "torch.optim.swa_utils.SWALR(optimizer, 0.1)",
    ],
)
def test_only_the_optimizer_gets_torchs_functions(made: str) -> None:
    after = rewritten(PROGRAM.replace("{made}", made))
    assert "= scheduler.state_dict()" in after
    assert '    scheduler.load_state_dict(checkpoint["scheduler"])' in after
    # Its model is named further down than where it is loaded.
    assert "set_optimizer_state_dict(" in after
    assert "optimizer_states = get_optimizer_state_dict(" in after
