"""Parts that FSDP1 puts into names, in lists of prefixes and in sentences for people."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

PREFIXES = LISTED


def plain(name):
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def train(net, files):
    model = FSDP(net, use_orig_params=True)
    return model, {plain(name): value for name, value in files.items()}
"""
PICKED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def biases(net, sharded):
    model = FSDP(net, use_orig_params=True)
    BOTH
    return [p for n, p in model.named_parameters() if n != excluded]
"""
SAID = """\
import argparse

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(net):
    parser = argparse.ArgumentParser()
    parser.add_argument("--strip", help=TEXT)
    return FSDP(net, use_orig_params=True), parser
"""


@pytest.mark.parametrize(
    "listed",
    [
        '("module.", "module._fsdp_wrapped_module.")',
        '["_orig_mod.", "model.", "model._fsdp_wrapped_module."]',
        '{"head.weight", "_fsdp_wrapped_module.head.weight"}',
    ],
)
def test_what_is_done_for_names_without_the_part_is_done(listed: str) -> None:
    result, after = migrate({"train.py": PROGRAM.replace("LISTED", listed)})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert f"PREFIXES = {listed}\n" in after["train.py"]
    assert "fully_shard(net)" in after["train.py"]
    assert "TODO" not in after["train.py"]


@pytest.mark.parametrize(
    "listed",
    [
        '("model.", "module._fsdp_wrapped_module.")',
        '["model._fsdp_wrapped_module.head"]',
        '{"model.": "model._fsdp_wrapped_module."}',
        '("model.", ("model._fsdp_wrapped_module.", 1))',
    ],
)
def test_names_that_are_asked_for_with_the_part_alone_are_told(listed: str) -> None:
    result, after = migrate({"train.py": PROGRAM.replace("LISTED", listed)})
    assert Outcome.LEFT in {d.outcome for d in result.decisions}
    assert "TODO(fsdp-migrate FSDP406)" in after["train.py"]


@pytest.mark.parametrize(
    "text",
    [
        '"Strip common prefixes such as module. and _fsdp_wrapped_module."',
        '"what is left of module._fsdp_wrapped_module. in names"',
    ],
)
def test_sentences_are_no_names(text: str) -> None:
    result, after = migrate({"train.py": SAID.replace("TEXT", text)})
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert f"help={text}" in after["train.py"]
    assert "TODO" not in after["train.py"]


@pytest.mark.parametrize(
    "text",
    [
        "\"name = name.replace('_fsdp_wrapped_module.', '')\"",
        '"_fsdp_wrapped_module.head weight"',
        '"for n in names: n[len(_fsdp_wrapped_module):]"',
    ],
)
def test_code_and_names_are_no_sentences(text: str) -> None:
    result, _ = migrate({"train.py": SAID.replace("TEXT", text)})
    assert Outcome.LEFT in {d.outcome for d in result.decisions}


@pytest.mark.parametrize(
    "both",
    [
        'names = ("model.head", "model._fsdp_wrapped_module.head")\n    excluded = names[sharded]',
        'excluded = ("model.head", "model._fsdp_wrapped_module.head")[sharded]',
        'plain, excluded = "model.head", "model._fsdp_wrapped_module.head"',
    ],
)
def test_one_that_is_picked_from_two_stands_alone(both: str) -> None:
    _, after = migrate({"train.py": PICKED.replace("BOTH", both)})
    assert "_fsdp_wrapped_module" not in after["train.py"] or "= FSDP(net" in after["train.py"]


IN_TESTS = """\
import pytest

from train import plain


@pytest.mark.parametrize("names", [("model._fsdp_wrapped_module.a.conv", "conv")])
def test_names(names):
    assert plain(names[0]) == names[1]
"""


@pytest.mark.parametrize("path", ["tests/names.py", "test_names.py"])
def test_names_in_a_test_hold_no_model_back(path: str) -> None:
    result, after = migrate({"train.py": PROGRAM.replace("LISTED", '("module.",)'), path: IN_TESTS})
    assert "fully_shard(net)" in after["train.py"]
    assert "TODO(fsdp-migrate FSDP406)" in after[path]
    assert [d.held for d in result.decisions if d.outcome is Outcome.LEFT] == [False]
