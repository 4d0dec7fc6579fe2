"""Training steps of which an error stops nothing, so that a crash would be no crash."""

from __future__ import annotations

import pytest

from fsdp_migrate.families.training_loop.swallowed_errors import WHY
from tests.helpers.migrating import migrate

PROGRAM = """\
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def step(model, optimizer, batch):
    model(batch).sum().backward()
    optimizer.step()


def train(net, loader):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in loader:
        try:
            STEP
        HANDLER
"""
STEPS = ["step(model, optimizer, batch)", "model(batch).sum().backward()"]


def said(step: str, handler: str) -> bool:
    source = PROGRAM.replace("STEP", step).replace("HANDLER", handler)
    result, _ = migrate({"train.py": source})
    return any(each.why == WHY for each in result.not_followed)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "handler",
    [
        "except Exception as e:\n            print(e)",
        "except:\n            continue",
        "except (ValueError, RuntimeError):\n            optimizer.zero_grad()",
    ],
)
def test_the_report_names_it(step: str, handler: str) -> None:
    assert said(step, handler)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    "handler",
    [
        "except ValueError:\n            continue",
        "except Exception:\n            print('failed')\n            raise",
        "except RuntimeError as e:\n            if 'memory' not in str(e):\n                raise",
        "except Exception:\n            sys.exit(1)",
        "except Exception:\n            break",
        "finally:\n            pass",
    ],
)
def test_what_ends_the_program_is_not_spoken_of(step: str, handler: str) -> None:
    assert not said(step, handler)


def test_nor_is_a_handler_around_all_of_the_training() -> None:
    source = PROGRAM.replace("STEP", STEPS[0]).replace("HANDLER", "finally:\n            pass")
    source += (
        "\n\ntry:\n    train(torch.nn.Linear(2, 2), [])\nexcept Exception as e:\n    print(e)\n"
    )
    result, _ = migrate({"train.py": source})
    assert not result.not_followed


MEASURED = """\
import torch
from dataclasses import dataclass
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


@dataclass
class Config:
    width: int = 2
    fsdp: bool = True


def train(config, batches):
    model = torch.nn.Linear(config.width, 2)
    if config.fsdp and torch.cuda.is_available():
        model = FSDP(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()


def peak(width, batches):
    train(Config(WITH), batches)
    return torch.cuda.max_memory_allocated()


def benchmark(batches):
    for width in (2, 4):
        try:
            print(peak(width, batches))
        except RuntimeError as error:
            print(error)


train(Config(), [])
"""


@pytest.mark.parametrize("given", ["width=width, fsdp=False", "fsdp=False"])
def test_nor_are_steps_of_models_that_are_never_sharded(given: str) -> None:
    result, _ = migrate({"train.py": MEASURED.replace("WITH", given)})
    assert not result.not_followed


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ("", ""),
        ("width=width, fsdp=True", ""),
        ("fsdp=width > 2", ""),
        ("fsdp=False", "config = Config()\nconfig.fsdp = True\n"),
        ("fsdp=False", "for key in ('fsdp', 'width'):\n    setattr(Config(), key, 1)\n"),
        ("fsdp=False", "train(Config(), [])\nother = FSDP(torch.nn.Linear(2, 2))\n"),
    ],
)
def test_those_of_models_that_may_be_are(given: str, more: str) -> None:
    result, _ = migrate({"train.py": MEASURED.replace("WITH", given) + more})
    assert [each.why for each in result.not_followed] == [WHY]
