"""What is written in place into a state is not written into the model, as under FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp import StateDictType


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = FSDP(
        net,
        device_id=torch.device("cpu"),
        sharding_strategy=ShardingStrategy.STRATEGY,
        use_orig_params=True,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.arange(8.0).view(2, 4)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            state = model.state_dict()
        for value in state.values():
            value.fill_(float(step))
        print("loss", loss.item())
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize("strategy", ["NO_SHARD", "FULL_SHARD"])
def test_a_state_that_is_filled_is_a_copy(
    launcher: Launcher, tmp_path: Path, strategy: str
) -> None:
    program = PROGRAM.replace("STRATEGY", strategy)
    both = written({"train.py": program.encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) == 6
    # On two ranks a whole state is gathered anew, unless every rank has all of the model.
    assert ("deepcopy(" in both.text()) is (strategy == "NO_SHARD")
