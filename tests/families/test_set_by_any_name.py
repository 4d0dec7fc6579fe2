"""Settings in attributes, where something sets attributes whose names only the running program has:
which objects it sets them of tells whether it may be these."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Settings:
    def override(self, values):
        for name, value in values.items():
            setattr(self, name, value)


class Base:
    pass


class Trainer(Base):
    def __init__(self, net):
        self.policy = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        self.model = FSDP(net)

    def save(self, path):
        with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT, self.policy):
            state = self.model.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)


MORE
Trainer(torch.nn.Linear(4, 4)).save("x.pt")
"""
WRITTEN = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"


def after(more: str = "", *, base: str = "    pass\n") -> str:
    source = PROGRAM.replace("MORE", more).replace(
        "class Base:\n    pass\n", f"class Base:\n{base}"
    )
    result, files = migrate({"train.py": source})
    assert not result.problems
    return files["train.py"]


@pytest.mark.parametrize(
    "more",
    [
        "",
        "class Loader:\n    def fill(self, name, value):\n        setattr(self, name, value)\n",
        "class Settled(Settings):\n    pass\n",
        "settings = Settings()\nsetattr(settings, str(1), 2)\n",
        "settings = Settings()\nprint(settings.__dict__)\n",
    ],
)
def test_objects_of_other_classes_are_others(more: str) -> None:
    text = after(more)
    assert WRITTEN in text
    assert "state_dict_type" not in text


SETTER = "    def fill(self, name, value):\n        setattr(self, name, value)\n"


@pytest.mark.parametrize(
    "more",
    [
        f"class Derived(Trainer):\n{SETTER}",
        "class Both(Settings, Trainer):\n    pass\n",
        "def fill(anything, name, value):\n    setattr(anything, name, value)\n",
        "trainer = Trainer(torch.nn.Linear(4, 4))\nsetattr(trainer, str(1), 2)\n",
        "trainer = Trainer(torch.nn.Linear(4, 4))\ntrainer.__dict__.update(a=1)\n",
        f"class Odd:\n    @staticmethod\n{SETTER}",
        f"class Odd:\n{SETTER}".replace("        set", "        self = value\n        set"),
    ],
)
def test_what_may_be_the_object_keeps_the_setting_for_the_running_program(more: str) -> None:
    assert WRITTEN not in after(more)


def test_so_does_a_base_class() -> None:
    assert WRITTEN not in after(base=SETTER)


STRATEGY = """\
import os
from dataclasses import dataclass
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy


@dataclass
class Config:
    strategy: str = "SHARD_GRAD_OP"

    @classmethod
    def of_environment(cls):
        return cls(strategy=os.environ.get("SHARDING", "SHARD_GRAD_OP"))


config = Config.of_environment()
model = FSDP(nn.Linear(4, 4), sharding_strategy=getattr(ShardingStrategy, config.strategy))
"""


def test_a_name_that_an_object_has_may_be_another() -> None:
    """Not the default of the field alone, for which one from the environment was taken."""
    _, files = migrate({"train.py": STRATEGY})
    assert "config.strategy" in files["train.py"]
