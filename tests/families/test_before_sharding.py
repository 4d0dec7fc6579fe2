"""What is done to parameters before their model is sharded, in other methods than its wrap."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

CAST = """\
def cast(models, dtype):
    if not isinstance(models, list):
        models = [models]
    for model in models:
        for p in model.parameters():
            if p.requires_grad:
                p.data = p.to(dtype)
"""
TRAINER = """\
import torch
from cast import cast
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 4)

    def prepare(self):
        cast(self.model, torch.bfloat16)

    def wrap(self):
        self.model = FSDP(self.model, use_orig_params=True)

"""
EARLY = {
    "one method above the other": (
        "    def fit(self):\n        self.prepare()\n        self.wrap()\n"
    ),
    "both behind others": (
        "    def begin(self):\n        self.prepare()\n\n"
        "    def shard(self):\n        self.wrap()\n\n"
        "    def fit(self):\n        self.begin()\n        self.shard()\n"
    ),
    "under a condition": (
        "    def fit(self, half):\n        if half:\n            self.prepare()\n"
        "        self.wrap()\n"
    ),
}
LATE = {
    "below": "    def fit(self):\n        self.wrap()\n        self.prepare()\n",
    "above and below": (
        "    def fit(self):\n        self.prepare()\n        self.wrap()\n        self.prepare()\n"
    ),
    "in turns": (
        "    def fit(self):\n        for _ in range(2):\n            self.prepare()\n"
        "            self.wrap()\n"
    ),
    "below, in who calls the method": (
        "    def fit(self):\n        self.prepare()\n        self.wrap()\n\n\n"
        "trainer = Trainer()\ntrainer.fit()\ncast(trainer.model, torch.float32)\n"
    ),
    "by nobody in sight": "    def fit(self):\n        self.wrap()\n",
}


def _places(rest: str) -> tuple[list[Outcome], bool]:
    """How the places end that the cast makes, and whether the model is sharded."""
    result, after = migrate({"cast.py": CAST, "train.py": TRAINER + rest})
    assert not result.problems
    found = [d.outcome for d in result.decisions if d.site.module.display == "cast.py"]
    return found, "fully_shard(" in after["train.py"]


@pytest.mark.parametrize("rest", EARLY.values(), ids=EARLY)
def test_a_cast_that_has_run_when_the_model_is_sharded_stays(rest: str) -> None:
    assert _places(rest) == ([], True)


@pytest.mark.parametrize("rest", LATE.values(), ids=LATE)
def test_one_that_may_run_later_holds_the_model_back(rest: str) -> None:
    found, is_sharded = _places(rest)
    assert Outcome.LEFT in found
    assert not is_sharded


SCRIPT = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from {imported} import settings


def main(build, path, net):
    models = build()
    model = models["model"]
    {above}
    net = FSDP(net)
    {below}
    return net


if __name__ == "__main__":
    main(*settings)
"""
LOADED = "model.load_state_dict(torch.load(path))"
OTHER = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

settings = ()


def wrap(net):
    return FSDP(net)
"""


@pytest.mark.parametrize(
    ("above", "below", "imported", "is_marked"),
    [
        (LOADED, "", "plain", False),  # what shards in the other file is in no program with it
        (LOADED, "", "other", True),
        ("", LOADED, "plain", True),
    ],
)
def test_what_a_script_never_runs_with_it_says_nothing_of_the_order(
    above: str, below: str, imported: str, is_marked: bool
) -> None:
    """A model for rewards, which is loaded above the wrap of another."""
    source = SCRIPT.format(imported=imported, above=above or "pass", below=below or "pass")
    files = {"train.py": source, "other.py": OTHER, "plain.py": "settings = ()\n"}
    _, after = migrate(files)
    assert ("TODO(fsdp-migrate FSDP303)" in after["train.py"]) is is_marked
