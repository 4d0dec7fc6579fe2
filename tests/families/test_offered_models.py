"""Models of a function that users of a project call alone, in its other files."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

WRAP = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def wrap_model(model, strategy):
    if strategy == "fsdp":
        model = FSDP(model)
    else:
        model = DDP(model)
    return model
"""
TRAINER = """\
import torch


class Trainer:
    def __init__(self, model, scheduler):
        self.model = model
        self.scheduler = scheduler

    def save(self, path):
        torch.save({"model": self.model.state_dict(), "rest": self.scheduler.state_dict()}, path)

    def load(self, path):
        self.model.load_state_dict(torch.load(path)["model"])
"""


def trainer(wrap: str = WRAP, source: str = TRAINER, **files: str) -> str:
    named = {f"{name}.py": text for name, text in files.items()}
    return migrate({"wrap.py": wrap, "trainer.py": source, **named})[1]["trainer.py"]


def test_its_states_are_marked_in_other_files() -> None:
    text = trainer()
    assert text.count("TODO(fsdp-migrate FSDP302)") == 1
    assert text.count("TODO(fsdp-migrate FSDP303)") == 1


@pytest.mark.parametrize(
    "wrap",
    [
        WRAP.replace("    return model\n", "    train(model)\n"),  # gives none back
        WRAP.replace("def wrap_model", "def _wrap_model"),
        WRAP + "\n\nmodel = wrap_model(net, 'fsdp')\n",  # is called here
    ],
)
def test_what_is_offered_to_nobody_is_not_looked_for(wrap: str) -> None:
    assert trainer(wrap) == TRAINER


def test_a_trainer_that_is_given_a_plain_model_is_not() -> None:
    used = "from torch import nn\n\nfrom trainer import Trainer\n\nTrainer(nn.Linear(2, 2), None)\n"
    assert trainer(used=used) == TRAINER


def test_a_function_that_users_give_a_model_is_marked() -> None:
    source = "import torch\n\n\ndef save(model, path):\n    torch.save(model.state_dict(), path)\n"
    assert "FSDP302" in trainer(source=source)
