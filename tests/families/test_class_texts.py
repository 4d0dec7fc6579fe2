"""FSDP413: a part of the name of a class, of sharded models and of other objects."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(net, batch, loader, kind):
    model = FSDP(net)
    found = QUESTION
    return model, found
"""
WRAPPER = "FullyShardedDataParallel"


def asked(question: str, head: str = "") -> tuple[str, list[Outcome]]:
    result, after = migrate({"train.py": head + PROGRAM.replace("QUESTION", question)})
    return after["train.py"], [d.outcome for d in result.decisions if d.code == "FSDP413"]


@pytest.mark.parametrize(
    ("question", "new"),
    [
        (f'"{WRAPPER}" in type(model).__name__', "isinstance(model, FSDPModule)"),
        (f'"{WRAPPER}" in type(batch).__name__', "isinstance(batch, FSDPModule)"),
        ('"FullySharded" not in model.__class__.__name__', "not isinstance(model, FSDPModule)"),
        ('"fullyshardeddata" in type(model).__name__.lower()', "isinstance(model, FSDPModule)"),
        ('"fully_sharded_data_parallel" in str(type(model))', "isinstance(model, FSDPModule)"),
        ('type(model).__name__.startswith("FullySharded")', "isinstance(model, FSDPModule)"),
        (
            'type(model).__name__.endswith("DataParallel")',
            'type(model).__name__.endswith("DataParallel") or isinstance(model, FSDPModule)',
        ),
        (
            '"Parallel" in type(model).__name__ and bool(kind)',
            '("Parallel" in type(model).__name__ or isinstance(model, FSDPModule)) and bool(kind)',
        ),
    ],
)
def test_a_part_of_the_wrappers_name_asks_for_a_sharded_module(question: str, new: str) -> None:
    text, outcomes = asked(question)
    assert f"found = {new}\n" in text
    assert outcomes == [Outcome.REWRITTEN]


def test_other_libraries_wrappers_of_the_name_are_still_asked_for() -> None:
    head = "from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel\n"
    question = f'"{WRAPPER}" in type(model).__name__'
    assert f"found = {question} or isinstance(model, FSDPModule)\n" in asked(question, head)[0]


@pytest.mark.parametrize(
    "question", ['"FSDP" in type(model).__name__', '"FSDP" in str(type(model))']
)
def test_what_is_true_of_fsdp2s_classes_alone_is_for_review(question: str) -> None:
    text, outcomes = asked(question)
    assert f"found = {question}\n" in text
    assert Outcome.REVIEW in outcomes


@pytest.mark.parametrize(
    "question",
    [
        '"Data" in type(loader).__name__',
        '"DataParallel" in type(batch).__name__',
        f'"{WRAPPER}" in kind',
        '"fsdp" in type(loader).__module__',
        'type(batch).__name__.startswith("Norm")',
        'kind.startswith("FullySharded")',
    ],
)
def test_other_objects_and_parts_that_say_the_same_stay(question: str) -> None:
    text, outcomes = asked(question)
    assert f"found = {question}\n" in text
    assert not outcomes


def test_a_name_that_is_made_of_itself_comes_to_an_end() -> None:
    question = f'"{WRAPPER}" in kind\n    kind = kind.lower()\n    kind = kind'
    assert f'"{WRAPPER}" in kind' in asked(question)[0]
