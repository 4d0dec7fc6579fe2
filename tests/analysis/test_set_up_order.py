"""What ``__init__`` calls before it wraps a model sees the model as it was."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

TRAINER = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self, model, path):
        self.model = model
        {before}
        self.model = FSDP(self.model)
        {after}

    def load(self, path):
        self.model.load_state_dict(torch.load(path))

    def train(self, batch):
        self.model(batch).sum().backward()
        {later}


Trainer(torch.nn.Linear(2, 2), "last.pt")
"""
PLAIN = "self.model.load_state_dict(torch.load(path))"
BEFORE = {
    "once": "self.load(path)",
    "under a condition": "if path:\n            self.load(path)",
    "twice": "self.load(path)\n        self.load(path)",
}
ALSO_LATER = {
    "after the wrap": {"before": "self.load(path)", "after": "self.load(path)"},
    "only after it": {"after": "self.load(path)"},
    "while it trains": {"before": "self.load(path)", "later": "self.load(batch)"},
    "handed on": {"before": "self.load(path)", "after": "path.on_resume(self.load)"},
    "by its name": {"before": "self.load(path)", "after": "getattr(self, 'load')(path)"},
    "in a loop": {"before": "for p in path:\n            self.load(p)"},
    "in a function": {"before": "later = lambda: self.load(path)", "after": "later()"},
    "by somebody else": {"before": "self.load(path)", "later": "batch.trainer.load(batch)"},
}


def written(**places: str) -> str:
    filled = {"before": "pass", "after": "pass", "later": "pass", **places}
    _, after = migrate({"example.py": TRAINER.format(**filled)})
    return after["example.py"]


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_what_is_called_before_the_wrap_alone_loads_a_plain_model(before: str) -> None:
    text = written(before=before)
    assert PLAIN in text
    assert "fully_shard(self.model)" in text


@pytest.mark.parametrize("places", ALSO_LATER.values(), ids=ALSO_LATER)
def test_what_may_be_called_later_does_not(places: dict[str, str]) -> None:
    assert PLAIN not in written(**places)


PARTS = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Pair:
    def __init__(self):
        self.net = nn.Linear(2, 2)


class Trainer:
    def __init__(self, pair):
        self.pair = {made}
        self.first = self.pair.net.state_dict()
        self.pair.net = FSDP(self.pair.net)
        self.last = self.pair.net.state_dict()
"""


def test_a_part_of_what_init_made_is_plain_before_it_is_wrapped() -> None:
    _, after = migrate({"example.py": PARTS.format(made="Pair()")})
    assert "self.first = self.pair.net.state_dict()" in after["example.py"]
    assert "self.last = self.pair.net.state_dict()" not in after["example.py"]


def test_a_part_of_what_it_was_given_may_be_wrapped_already() -> None:
    _, after = migrate({"example.py": PARTS.format(made="pair") + "\n\nTrainer(Pair())\n"})
    assert "self.first = self.pair.net.state_dict()" not in after["example.py"]


def test_a_base_class_may_call_it_as_well() -> None:
    based = TRAINER.replace(
        "class Trainer:", "from frames import Runner\n\n\nclass Trainer(Runner):"
    )
    filled = based.format(before="self.load(path)", after="pass", later="pass")
    _, after = migrate({"example.py": filled})
    assert PLAIN not in after["example.py"]


def test_a_part_that_another_file_wraps_as_well_may_be_wrapped() -> None:
    trainer = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "from pair import Pair\n\n\nclass Trainer:\n    def __init__(self):\n"
        "        self.pair = Pair()\n        {first}\n        {second}\n"
    )
    ask = "self.state = self.pair.net.state_dict()"
    wrap = "self.pair.net = FSDP(self.pair.net)"
    pair = "from torch import nn\n\n\nclass Pair:\n    def __init__(self):\n"
    files = {
        "pair.py": pair + "        self.net = nn.Linear(2, 2)\n",
        "early.py": trainer.format(first=ask, second=wrap),
        "late.py": trainer.format(first=f"{wrap}; {ask}", second="pass"),
    }
    _, after = migrate(files)
    assert ask not in after["early.py"]
    assert ask not in after["late.py"]
