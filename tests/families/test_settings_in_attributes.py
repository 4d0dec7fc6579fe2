"""FSDP1's settings in attributes of objects: gone where all that read them was migrated."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    CLASS

    def __init__(self, net):
        self.policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        self.model = FSDP(net)

    def save(self, path):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, self.policy):
            state = self.model.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)
        METHOD


def main(path):
    trainer = Trainer(torch.nn.Linear(4, 4))
    trainer.save(path)
    MAIN
"""


def after(**more: str) -> tuple[str, str]:
    source = PROGRAM
    for name in ("CLASS", "METHOD", "MAIN"):
        source = source.replace(name, more.get(name.lower(), "pass"))
    result, files = migrate({"train.py": source})
    assert not result.problems
    return files["train.py"], files.get("fsdp2_support.py", "")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"main": "print(vars(trainer).keys())"},
        {
            "method": "with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, "
            "self.policy):\n            torch.save(self.model.state_dict(), path)"
        },
    ],
)
def test_a_setting_goes_with_what_reads_it(more: dict[str, str]) -> None:
    text, support = after(**more)
    assert "policy" not in text
    assert "full_state_dict=True, cpu_offload=True" in text
    assert not support


@pytest.mark.parametrize(
    "more",
    [
        {"method": "print(self.policy.rank0_only)"},
        {"main": "print(trainer.policy)"},
        {"main": "trainer.policy = None"},
        {"main": "print(getattr(trainer, 'policy'))"},
        {"main": "del trainer.policy"},
        {"class": "policy = None"},
        {"class": "policy: FullStateDictConfig"},
        {"main": "make(policy=1)"},
    ],
)
def test_a_setting_stays_for_who_may_read_it(more: dict[str, str]) -> None:
    text, _ = after(**more)
    assert "policy = FullStateDictConfig(" in text


def test_a_setting_that_a_context_still_has_stays() -> None:
    given = "self.model, StateDictType.FULL_STATE_DICT, self.policy"
    text, _ = after(method=f"with FSDP.state_dict_type({given}):\n            other(self.model)")
    assert "policy = FullStateDictConfig(" in text
