"""Calls of transformers' ``TrainingArguments``: what it makes of them before and after."""

from __future__ import annotations

import os
import warnings
from typing import Any
from unittest import mock

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.configurations import running
from tests.helpers.migrating import migrate, rewritten, unmarked

HEAD = "from transformers import TrainingArguments\n\n"
LOADS = '"cpu_ram_efficient_loading": True'


def made(source: str) -> Any:
    """The plugin that a program's arguments make."""
    found: dict[str, Any] = {}
    with mock.patch.dict(os.environ), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(source, found)
    given = found["args"].fsdp_plugin_args
    assert given is not None
    return running.plugin({}, **given)


@pytest.mark.parametrize(
    ("given", "reshard", "offload"),
    [
        (f'fsdp="full_shard auto_wrap", fsdp_config={{{LOADS}}}', True, False),
        (f'fsdp="shard_grad_op", fsdp_config={{{LOADS}, "version": 1}}', False, False),
        (f'fsdp=["full_shard", "offload"], fsdp_config={{"fsdp_{LOADS[1:]}}}', True, True),
        ('fsdp="shard_grad_op auto_wrap"', False, False),
        (f'fsdp=True, fsdp_config={{{LOADS}, "forward_prefetch": True}}', True, False),
    ],
)
def test_transformers_takes_what_is_written(given: str, reshard: bool, offload: bool) -> None:
    before = f'{HEAD}args = TrainingArguments("out", {given}, use_cpu=True)\n'
    after = rewritten(before)
    assert after != before
    plugin = made(after)
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is reshard
    assert (type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy") is offload
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("fsdp=options.fsdp", "the value of fsdp is not known"),
        ('fsdp="full_shard", fsdp_config="fsdp.json"', "the file that fsdp_config names"),
        ('fsdp="full_shard", **more', "the file that fsdp_config names"),
        ('fsdp="no_shard"', "NO_SHARD"),
        ('fsdp="full_shard", fsdp_config={"version": 3}', "knows 1 and 2"),
        ('fsdp="full_shard", fsdp_config={**base, "version": 1}', "the file that fsdp_config"),
    ],
)
def test_what_is_left_says_why(given: str, said: str) -> None:
    source = f'{HEAD}args = TrainingArguments("out", {given})\n'
    result, after = migrate({"a.py": source})
    assert [(d.code, d.outcome) for d in result.decisions] == [("FSDP521", Outcome.LEFT)]
    assert said in result.decisions[0].message
    assert unmarked(after["a.py"]) == source


@pytest.mark.parametrize(
    "given", ['fsdp=""', "fsdp=False", 'fsdp_config={"version": 1}', "bf16=True", "**fsdp"]
)
def test_without_fsdp_there_is_no_site(given: str) -> None:
    source = f'{HEAD}args = TrainingArguments("out", {given})\n'
    result, after = migrate({"a.py": source})
    assert not result.decisions
    assert after["a.py"] == source


def test_a_dictionary_that_others_read_stays() -> None:
    source = (
        f'{HEAD}config = {{"version": 1}}\nprint(config)\n'
        'args = TrainingArguments("out", fsdp="full_shard", fsdp_config=config)\n'
    )
    result, after = migrate({"a.py": source})
    assert [d.outcome for d in result.decisions] == [Outcome.LEFT]
    assert unmarked(after["a.py"]) == source
