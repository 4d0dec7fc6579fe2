"""What a guard asks is bound in front of the statement that it guards."""

from __future__ import annotations

import ast

import pytest

from fsdp_migrate.migration.engine import Options
from tests.helpers.migrating import migrate

HEAD = """\
import contextlib

import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


"""
EITHER = """\
def train(net, fsdp, wanted):
    if fsdp:
        model = FSDP(net)
    else:
        model = DDP(net)
    USE
"""
STATE = "state_dict(keep_vars=True)"
STOPS = "raise NotImplementedError("


def guarded(use: str) -> str:
    result, after = migrate({"a.py": HEAD + EITHER.replace("USE", use)}, Options(partial=True))
    assert not result.problems
    return after["a.py"]


@pytest.mark.parametrize(
    "use",
    [
        f"return model.{STATE}",
        f"saved = [model.{STATE}]",
        f"model = model.{STATE}",
        f"with contextlib.nullcontext() as m, saved(model.{STATE}):\n        pass",
    ],
)
def test_the_model_is_asked_where_it_is_bound_before(use: str) -> None:
    assert f"    if isinstance(model, FSDPModule):\n        {STOPS}" in guarded(use)


@pytest.mark.parametrize(
    "use",
    [
        f"return (m := model), m.{STATE}",
        f"return (m := model).{STATE}",
        f"with contextlib.nullcontext(model) as m, saved(m.{STATE}):\n        pass",
        f"with contextlib.nullcontext((model, 1)) as (m, _), saved(m.{STATE}):\n        pass",
    ],
)
def test_a_name_that_the_statement_binds_is_not_asked(use: str) -> None:
    after = guarded(use)
    assert f"\n    {STOPS}" in after or "FSDP(net)" in after
    assert "isinstance" not in after


def test_a_condition_that_the_statement_binds_is_not_asked() -> None:
    use = f"with wanted() as w, saved(model.{STATE} if w else None):\n        pass"
    assert "if w" not in guarded(use).replace("if w else", "")


def test_a_clip_is_not_of_a_name_of_another_function() -> None:
    program = """\
def clip(parameters, settings):
    torch.nn.utils.clip_grad_norm_(parameters, *settings)


def train(sharded, x, settings):
    model = torch.nn.Linear(4, 4)
    if sharded:
        model = FSDP(model)
    model(x).sum().backward()
    clip(model.parameters(), settings)
"""
    result, _ = migrate({"a.py": HEAD + program})
    assert not result.problems
    (site,) = [d.site for d in result.decisions if d.code == "FSDP401"]
    assert site.receiver is not None
    assert ast.unparse(site.receiver) == "parameters"
