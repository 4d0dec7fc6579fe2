"""What a study keeps is asked once for all forms that are tried, each of which has constructors of
its own: what is kept knows none of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import files, migrate, unmarked

FIXTURES = Path(__file__).parents[2] / "fixtures"
# Arguments that nobody reads, so that the run-time form is tried; one rank saves the optimizer.
SAVED = """\
import json

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net, data, rank, path):
    model = FSDP(net, **json.loads(path))
    optimizer = OPTIMIZER
    for batch in data:
        model(batch).sum().backward()
        optimizer.step()
    save(model, optimizer, rank)


def save(model, optimizer, rank):
    state = model.state_dict()
    if rank == 0:
        torch.save({"model": state, "optimizer": optimizer.state_dict()}, "last.pt")


def load(model, optimizer):
    saved = torch.load("last.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])


def run(net, data, rank, path):
    model = FSDP(net, **json.loads(path))
    load(model, torch.optim.AdamW(model.parameters()))
    train(net, data, rank, path)
"""
OPTIMIZERS = {
    "built behind the wrap": "torch.optim.AdamW(model.parameters(), lr=1e-3)",
    "given a list": "torch.optim.AdamW(list(model.parameters()), lr=1e-3)",
    "groups": 'torch.optim.AdamW([{"params": model.parameters()}], lr=1e-3)',
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_optimizer_of_a_model_is_known_in_every_form(optimizer: str) -> None:
    result, after = migrate({"example.py": SAVED.replace("OPTIMIZER", optimizer)})
    assert not result.problems
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert "shard(net, **json.loads(path))" in after["example.py"]
    assert "get_optimizer_state_dict(" in after["example.py"]


BELOW = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save(trainer, optimizer, rank, kind):
    if kind == "own":
        if rank == 0:
            torch.save({"optimizer": optimizer.state_dict()}, "last.pt")
    else:
        state = trainer.model.state_dict()
        if rank == 0:
            torch.save({"model": state, "optimizer": optimizer.state_dict()}, "last.pt")


def load(trainer, optimizer):
    saved = torch.load("last.pt")
    optimizer.load_state_dict(saved["optimizer"])
    trainer.model.load_state_dict(saved["model"])


class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)


def run(net, rank, kind):
    trainer = Trainer(net)
    optimizer = torch.optim.AdamW(trainer.model.parameters())
    load(trainer, optimizer)
    save(trainer, optimizer, rank, kind)
"""


def test_the_model_of_an_optimizer_may_be_named_below_it() -> None:
    result, after = migrate({"example.py": BELOW})
    assert not result.problems
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert after["example.py"].count("get_optimizer_state_dict(") == 2
    assert "set_optimizer_state_dict(" in after["example.py"]


CONVERTED = BELOW.replace(
    """    optimizer.load_state_dict(saved["optimizer"])
""",
    """    if saved["kind"] == "own":
        optimizer.load_state_dict(saved["optimizer"])
        return
    state = FSDP.optim_state_dict_to_load(trainer.model, optimizer, saved["optimizer"])
    optimizer.load_state_dict(state)
""",
)


def test_what_fsdp1_converts_beside_an_optimizers_own_state_is_loaded_once() -> None:
    result, after = migrate({"example.py": CONVERTED})
    assert not result.problems
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert after["example.py"].count("set_optimizer_state_dict(") == 2
    assert "state = " not in after["example.py"].split("def load", maxsplit=1)[1].split("class")[0]


ANEW = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def plugin(net, optimizer, settings):
    model = FSDP(net, use_orig_params=True, **settings)
    optimizer.__init__(model.parameters(), **optimizer.defaults)
    return model, optimizer


def main(net, settings):
    optimizer = torch.optim.AdamW(net.parameters())
    return plugin(net, optimizer, settings)
"""


def test_an_optimizer_that_is_initialized_again_is_known_in_every_form() -> None:
    result, after = migrate({"example.py": ANEW})
    assert Outcome.LEFT not in {d.outcome for d in result.decisions}
    assert "shard(" in after["example.py"]


OWN = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)

    def freeze_norms(self):
        for name, p in self.named_parameters():
            if "norm" in name:
                p.requires_grad = False

    def load(self, saved):
        for p, s in zip(self.parameters(), saved):
            p.data = s.to(p.dtype)


def main(settings, saved):
    model = FSDP(Net(), **settings)
    model.freeze_norms()
    model.load(saved)
    with FSDP.summon_full_params(model, writeback=settings["write"], rank0_only=settings["one"]):
        print(model)
"""


def test_what_a_models_own_methods_do_is_held_back_with_it_in_every_form() -> None:
    result, after = migrate({"example.py": OWN})
    assert not result.problems
    assert {d.outcome for d in result.decisions} == {Outcome.LEFT}
    assert unmarked(after["example.py"]) == OWN


@pytest.mark.parametrize(
    "source", [OWN, SAVED.replace("OPTIMIZER", OPTIMIZERS["groups"]), ANEW, None]
)
def test_nothing_that_is_kept_has_constructors(
    source: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: dict[Callable[[Study], object], object] = {}
    own = Study.cache

    def cache(study: Study, find: Callable[[Study], object]) -> object:
        kept[find] = own(study, find)
        return kept[find]

    monkeypatch.setattr(Study, "cache", cache)
    migrate({"example.py": source} if source else files(FIXTURES / "demo" / "before"))
    assert kept
    assert [find.__name__ for find, value in kept.items() if any(_constructors(value))] == []


def _constructors(value: object, depth: int = 6) -> Iterator[Constructor]:
    if isinstance(value, Constructor):
        yield value
    inside: list[object] = []
    if isinstance(value, Mapping):
        inside = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        inside = [*value]
    elif dataclasses.is_dataclass(value):
        inside = [getattr(value, each.name) for each in dataclasses.fields(value)]
    for each in inside if depth else ():
        yield from _constructors(each, depth - 1)
