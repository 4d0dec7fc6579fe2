"""Calls that set a kind of state, and those of the same name that FSDP1 would refuse."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.fsdp1 import state_types
from tests.helpers.migrating import migrate

PROGRAM = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(net, contexts, stack):
    model = FSDP(net)
    for context in contexts:
        {asked}
    return model
"""


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("", "needs a module"),
        ("model", "needs a state_dict_type"),
        ("state_dict_type=kind", "needs a module"),
        ("model, kind, a, b, c", "takes 4 arguments"),
        ("model, kind, state_type=1", "takes no state_type"),
        ("model, kind, module=model", "takes one module"),
        ("model, kind", ""),
        ("model, kind, a, b", ""),
        ("module=model, state_dict_type=kind", ""),
        ("*given", ""),
        ("model, **given", ""),
    ],
)
def test_what_the_call_raises_for(arguments: str, why: str) -> None:
    call = ast.parse(f"FSDP.state_dict_type({arguments})", mode="eval").body
    assert isinstance(call, ast.Call)
    assert state_types.refused(call) == why


@pytest.mark.parametrize(
    "asked",
    [
        "stack.enter_context(context.state_dict_type(model))",
        "context.set_state_dict_type('whole')",
        "context.state_dict_type(model, state_type='whole')",
    ],
)
def test_what_fsdp1_would_refuse_is_somebody_elses(asked: str) -> None:
    result, after = migrate({"train.py": PROGRAM.format(asked=asked)})
    assert asked in after["train.py"]
    assert "fully_shard(net)" in after["train.py"]
    assert "TODO" not in after["train.py"]
    assert not result.problems
