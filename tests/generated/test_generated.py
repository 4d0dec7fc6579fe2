"""A sample of the programs with something hidden, another one whenever the tool changes much.

``python -m tests.generated`` makes thousands.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fsdp_migrate.report import event, text
from tests.generated import hiding, making
from tests.helpers.migrating import migrate

SEED, COUNT, PARTS = 20261123, 400, 8

PROGRAM = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{above}

def train(net, batches):
    model = FSDP(net)
    hidden = {hidden}
    for batch in batches:
        hidden(batch).sum().backward()
        {asked}
"""


@pytest.fixture(scope="module")
def bases() -> list[making.Base]:
    return list(making.bases())


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_silent(part: int, bases: list[making.Base]) -> None:
    chosen = random.Random(SEED + part)
    silent = {str(case): found for case in made(bases, chosen) if (found := making.unsaid(case))}
    assert not silent


def made(bases: list[making.Base], chosen: random.Random) -> Iterator[making.Case]:
    count = 0
    while count < COUNT // PARTS:
        case = making.case(chosen.choice(bases), chosen)
        if case is not None:
            count += 1
            yield case


def test_most_fixtures_and_examples_are_hidden_in(bases: list[making.Base]) -> None:
    assert len(bases) > 450
    assert sum(base.name.startswith("fixtures/") for base in bases) > 40


@pytest.mark.parametrize("way", hiding.EXPRESSIONS)
@pytest.mark.parametrize(
    "asked", ["torch.save({}.state_dict(), 'a')", "{}.clip_grad_norm_(1.0)", "print({}.module)"]
)
def test_what_a_hidden_model_is_asked_for(way: str, asked: str) -> None:
    """It is rewritten, or marked, for every way there is."""
    form, _, above = hiding.EXPRESSIONS[way].partition("|")
    given = PROGRAM.format(
        above=above, hidden=form.format("model", "model"), asked=asked.format("hidden")
    )
    _, after = migrate({"train.py": given})
    assert "fully_shard" in after["train.py"]
    unchanged = asked.format("hidden") in after["train.py"]
    assert not unchanged or "TODO(fsdp-migrate" in after["train.py"]


@pytest.mark.parametrize("name", ["parameters", "named_modules", "register_forward_hook"])
def test_the_report_names_what_is_used_and_not_followed(name: str) -> None:
    given = PROGRAM.format(
        above="import elsewhere", hidden="elsewhere.passed(model)", asked=f"print(hidden.{name}())"
    )
    result, _ = migrate({"train.py": given})
    assert text.not_followed_lines(event.summary(result)) == [
        "What passed() does with a model is not followed: see train.py:11"
    ]


@pytest.mark.parametrize(
    "hidden",
    [
        "elsewhere.Average(model)",  # an object of another class
        "model.named_parameters()",
        "elsewhere.loss_of(batches)",
        "torch.optim.AdamW(model.parameters())",
        "elsewhere.passed(net.config)",
    ],
)
def test_what_is_no_model_is_not_spoken_of(hidden: str) -> None:
    given = PROGRAM.format(above="import elsewhere", hidden=hidden, asked="hidden.parameters()")
    result, after = migrate({"train.py": given})
    assert not result.not_followed
    assert "TODO" not in after["train.py"]
