"""States of models that are replicated, which FSDP1 gave whole and to every rank in every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def step(model, optimizer):
    loss = model(torch.ones(2, 4) + dist.get_rank()).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())


def show(title, state):
    print(title, len(state))
    for name, value in state.items():
        print(title, name, type(value).__name__, tuple(value.shape), value.double().sum().item())


KINDS


def main(strategy, kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        sharding_strategy=STRATEGY,
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    for state in states(model, kind):
        show(kind, state)
        step(model, optimizer)
    step(model, optimizer)
    dist.destroy_process_group()


main(*sys.argv[1:])
"""

WRITTEN = """\
def states(model, kind):
    with FSDP.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    ):
        state = model.state_dict()
    yield state
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = model.state_dict()
        yield state
        model.load_state_dict(state)
"""

ASKED = """\
def states(model, kind):
    configs = {"FULL_STATE_DICT": FullStateDictConfig(rank0_only=True)}
    FSDP.set_state_dict_type(model, StateDictType[kind], configs.get(kind))
    state = model.state_dict()
    yield state
    if kind != "FULL_STATE_DICT":
        model.load_state_dict(state)
"""

FIRST = """\
def states(model, kind):
    with FSDP.state_dict_type(
        model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    ):
        state = model.state_dict()
    yield state
"""


def _compared(
    kinds: str, strategy: str, arguments: tuple[str, str], launcher: Launcher, scratch: Path
) -> int:
    text = PROGRAM.replace("KINDS\n", kinds).replace("STRATEGY", strategy)
    both = written({"train.py": text.encode()}, scratch)
    before = launcher.script(both.before, *arguments, fsdp1="allow")
    after = launcher.script(both.after, *arguments, fsdp1="forbid")
    return compare(before, after, tolerance=1e-5, atol=1e-6)


STRATEGIES = ("NO_SHARD", "FULL_SHARD")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_for_the_first_rank(strategy: str, launcher: Launcher, tmp_path: Path) -> None:
    written_out = f"ShardingStrategy.{strategy}"
    assert _compared(FIRST, written_out, (strategy, "states"), launcher, tmp_path) > 10


def test_of_every_kind(launcher: Launcher, tmp_path: Path) -> None:
    written_out = "ShardingStrategy.NO_SHARD"
    assert _compared(WRITTEN, written_out, ("NO_SHARD", "states"), launcher, tmp_path) > 20


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("NO_SHARD", "FULL_STATE_DICT"),
        ("NO_SHARD", "SHARDED_STATE_DICT"),
        ("SHARD_GRAD_OP", "FULL_STATE_DICT"),
    ],
)
def test_of_a_strategy_and_a_kind_that_are_known_at_run_time(
    strategy: str, kind: str, launcher: Launcher, tmp_path: Path
) -> None:
    at_run_time = "ShardingStrategy[strategy]"
    assert _compared(ASKED, at_run_time, (strategy, kind), launcher, tmp_path) > 4


def test_of_a_strategy_that_is_known_at_run_time_for_the_first_rank(
    launcher: Launcher, tmp_path: Path
) -> None:
    at_run_time = "ShardingStrategy[strategy]"
    assert _compared(FIRST, at_run_time, ("NO_SHARD", "states"), launcher, tmp_path) > 10
