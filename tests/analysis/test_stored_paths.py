"""Models that a class puts into parts of objects it knows nothing of."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate, unmarked

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Task:
    def __init__(self, trainer):
        self.trainer = trainer

    def shard(self):
        {store}

    def step(self):
        {use}
"""
FOLLOWED = {
    "a part": (
        "self.trainer.model = FSDP(self.trainer.model)",
        "self.trainer.model.clip_grad_norm_(1.0)",
    ),
    "a part of a part": (
        "self.trainer.task.net = FSDP(nn.Linear(2, 2))",
        "self.trainer.task.net.clip_grad_norm_(1.0)",
    ),
    "elements": (
        "self.trainer.layers = nn.ModuleList([FSDP(layer) for layer in self.trainer.layers])",
        "[layer.clip_grad_norm_(1.0) for layer in self.trainer.layers]",
    ),
    "elements, or None": (
        "self.trainer.layers = [FSDP(x) if x is not None else None for x in self.trainer.layers]",
        "[x.clip_grad_norm_(1.0) for x in self.trainer.layers if x is not None]",
    ),
}


@pytest.mark.parametrize(("store", "use"), FOLLOWED.values(), ids=FOLLOWED)
def test_what_a_class_stores_is_followed(store: str, use: str) -> None:
    result, after = migrate({"example.py": HEAD.format(store=store, use=use)})
    assert "torch.nn.utils.clip_grad_norm_(" in after["example.py"]
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}


OTHERS = {
    "another part": (
        "self.trainer.model = FSDP(nn.Linear(2, 2))",
        "self.trainer.config.module.close()",
    ),
    "a plain part": (
        "self.trainer.model, model = nn.Linear(2, 2), FSDP(nn.Linear(2, 2))",
        "self.trainer.model.state_dict()",
    ),
}


@pytest.mark.parametrize(("store", "use"), OTHERS.values(), ids=OTHERS)
def test_what_a_class_stores_elsewhere_stays(store: str, use: str) -> None:
    _, after = migrate({"example.py": HEAD.format(store=store, use=use)})
    assert after["example.py"].endswith(f"        {use}\n")


def test_the_same_path_in_another_class_is_another_thing() -> None:
    other = (
        "\n\nclass Other:\n    def save(self):\n        return self.trainer.model.state_dict()\n"
    )
    store = "self.trainer.model = FSDP(self.trainer.model)"
    _, after = migrate({"example.py": HEAD.format(store=store, use="pass") + other})
    assert unmarked(after["example.py"]).endswith(other)
    assert "If this is a sharded model" in after["example.py"]  # in a file that shards
