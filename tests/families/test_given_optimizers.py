"""An optimizer that a function is given beside the model that it wraps was built before."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
from typing import Any, Callable, Optional

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


"""
TRAINER = """\
class Trainer:
    def __init__(self, model, optimizer=None):
        self.model = FSDP(model, use_orig_params=True)
        self.optimizer = optimizer or torch.optim.AdamW(self.model.parameters())
"""
CALLED = f"""{TRAINER}

def main():
    return Trainer(torch.nn.Linear(2, 2))
"""
BY_A_HELPER = """\
class Trainer:
    def __init__(self, model, *, optim: Optional[torch.optim.Optimizer] = None):
        self.optim = optim
        self.model = self.wrap(model)
        if self.optim is None:
            self.optim = torch.optim.AdamW(self.model.parameters())

    def wrap(self, model):
        return FSDP(model, use_orig_params=True)
"""
FUNCTION = """\
def train(model, x, settings, optimizer: Any = None):
    model = FSDP(model, **settings)
    if optimizer is None:
        optimizer = torch.optim.AdamW(model.parameters())
    model(x).sum().backward()
    optimizer.step()


def main(x, settings):
    train(torch.nn.Linear(2, 2), x, settings)
    train(torch.nn.Linear(2, 2), x, settings, None)
"""
OF_ANOTHER_LIBRARY = """\
def train(model, x, optimizer):
    model = FSDP(model, use_orig_params=True)
    model(x).sum().backward()
    optimizer.step()


def main(x):
    from somewhere import create_optimizer

    net = torch.nn.Linear(2, 2)
    train(net, x, create_optimizer(net))
"""
STORED = """\
class Trainer:
    def __init__(self, model, optimizer_d=None):
        self.model = model
        self.optimizer = optimizer_d
        self.model = FSDP(self.model, use_orig_params=True)
        self.mine = torch.optim.AdamW(self.model.parameters())
"""


def said(program: str) -> str:
    result, after = migrate({"a.py": HEAD + program})
    assert not result.problems
    assert "FSDP(" not in after["a.py"]
    given = [d for d in result.decisions if d.site.construct.last == "given optimizer"]
    assert after["a.py"].count("TODO(fsdp-migrate FSDP403)") == len(given)
    return given[0].help if given else ""


@pytest.mark.parametrize(
    ("program", "named"),
    [
        (TRAINER, "Trainer() is given as optimizer trains"),
        (CALLED, "Trainer() is given as optimizer trains"),
        (BY_A_HELPER, "Trainer() is given as optim trains"),
        (FUNCTION, "train() is given as optimizer trains"),
        (OF_ANOTHER_LIBRARY, "train() is given as optimizer trains"),
        (STORED, "Trainer() is given as optimizer_d trains"),
    ],
)
def test_it_is_marked_where_the_model_is_wrapped(program: str, named: str) -> None:
    assert named in said(program)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (", use_orig_params=True", ""),  # FSDP1 did not train it either
        ("optimizer=None", 'optimizer="adamw"'),
        ("optimizer=None", "optimizer: Optional[str] = None"),
        ("optimizer=None", "optimizer: Optional[Callable[..., Any]] = None"),
        ("optimizer=None", "optimizer: type[torch.optim.Optimizer]"),
        ("optimizer=None", "optimizer_name=None"),
        ("optimizer=None", "build_optimizer=None"),
        ("optimizer or torch.optim.AdamW(", "optimizer("),
        ("optimizer or torch.optim.AdamW(", 'optimizer["name"] or torch.optim.AdamW('),
        ("optimizer or torch.optim.AdamW(", "optimizer.name or torch.optim.AdamW("),
        ("optimizer or torch.optim.AdamW(", 'optimizer == "a" or torch.optim.AdamW('),
        ("optimizer or ", ""),  # what is given is not used
    ],
)
def test_what_is_no_optimizer_is_not(old: str, new: str) -> None:
    changed = TRAINER.replace(old, new)
    if "_name" in new or "build_" in new:
        changed = changed.replace("optimizer or", f"{new.partition('=')[0]} or")
    assert changed != TRAINER
    assert not said(changed)


def test_a_model_that_the_function_is_not_given_is_not() -> None:
    assert not said(TRAINER.replace("FSDP(model", "FSDP(torch.nn.Linear(2, 2)"))


def test_one_that_is_initialized_anew_is_not() -> None:
    anew = "        optimizer.__init__(self.model.parameters(), **optimizer.defaults)\n"
    assert not said(TRAINER.replace("        self.optimizer", f"{anew}        self.optimizer"))


def test_one_that_somebody_in_sight_gives_holds_the_model_back() -> None:
    program = f"""{TRAINER}

def main(net):
    return Trainer(net, torch.optim.AdamW(net.parameters()))
"""
    _, after = migrate({"a.py": HEAD + program})
    assert "fully_shard(" not in after["a.py"]


def test_a_method_out_of_sight_is_marked_once() -> None:
    program = """\
class Strategy:
    def setup(self, model, optimizer):
        return FSDP(model, use_orig_params=True), optimizer
"""
    _, after = migrate({"a.py": HEAD + program})
    assert after["a.py"].count("TODO(fsdp-migrate FSDP403)") == 1
