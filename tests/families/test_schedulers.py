"""``initial_lr`` is given to optimizers that a scheduler is made of, and to no others."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

LOOP = 'group.setdefault("initial_lr", group["lr"])'
LOAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def load(net, path):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    state = FSDP.optim_state_dict_to_load(model, optimizer, torch.load(path))
    optimizer.load_state_dict(state)
    {after}
    return optimizer
"""
SCHEDULED = {
    "torch's": "schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)",
    "by keyword": "schedule = torch.optim.lr_scheduler.StepLR(optimizer=optimizer, step_size=1)",
    "a library's": "from transformers import get_scheduler\n    get_scheduler('linear', optimizer)",
    "by name": "schedule = getattr(torch.optim.lr_scheduler, 'StepLR')(optimizer, 1)",
    "the project's": "schedule = make_scheduler(optimizer, 1)\n\n\ndef make_scheduler(o, n):\n"
    "    return torch.optim.lr_scheduler.StepLR(o, n)\n\n\ndef rest(optimizer):",
}
NOT_SCHEDULED = {
    "nothing": "pass",
    "another's": "other = torch.optim.SGD([torch.zeros(1)])\n"
    "    schedule = torch.optim.lr_scheduler.ExponentialLR(other, 0.9)",
    "an annotation": "schedule: torch.optim.lr_scheduler.LRScheduler | None = None",
}


@pytest.mark.parametrize("after", SCHEDULED.values(), ids=SCHEDULED)
def test_a_scheduled_optimizer_is_given_it(after: str) -> None:
    _, written = migrate({"example.py": LOAD.format(after=after)})
    assert LOOP in written["example.py"]


@pytest.mark.parametrize("after", NOT_SCHEDULED.values(), ids=NOT_SCHEDULED)
def test_others_are_not(after: str) -> None:
    _, written = migrate({"example.py": LOAD.format(after=after)})
    assert "initial_lr" not in written["example.py"]
    assert "set_optimizer_state_dict" in written["example.py"]


READ = """\
import torch
from torch.distributed.checkpoint import FileSystemReader, load_sharded_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def build(net):
    return FSDP(net)


def load(model: FSDP, optimizer, path):
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        read = load_sharded_optimizer_state_dict(
            model_state_dict=model.state_dict(),
            optimizer_key="optim",
            storage_reader=FileSystemReader(path),
        )
        state = FSDP.optim_state_dict_to_load(model, optimizer, read["optim"])
        optimizer.load_state_dict(state)


def schedule(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
"""


def test_what_dcp_reads_for_an_unknown_optimizer_is_for_review() -> None:
    result, written = migrate({"example.py": READ})
    assert "setdefault" not in written["example.py"]
    loads = [d for d in result.decisions if d.code == "FSDP305"]
    assert Outcome.REVIEW in {d.outcome for d in loads}
    assert any("make schedulers before this" in d.help for d in loads)


@pytest.mark.parametrize(
    ("after", "settings"),
    [
        (
            "schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9)",
            ["initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"],
        ),
        (
            "from torch.optim.lr_scheduler import OneCycleLR as C\n    C(optimizer, 0.1, 9)",
            ["initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"],
        ),
        (
            "schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.1)",
            ["initial_lr", "swa_lr"],
        ),
    ],
)
def test_what_else_a_scheduler_adds_is_given(after: str, settings: list[str]) -> None:
    _, written = migrate({"example.py": LOAD.format(after=after)})
    named = ", ".join(f'"{setting}"' for setting in settings)
    loop = f"""\
    for group in optimizer.param_groups:
        for name in ({named}):
            group.setdefault(name, group["lr"])
"""
    assert loop in written["example.py"]
