"""A list of gradients is clipped by a norm that is not known: of a sharded model as of a plain one,
but that there is no infinity norm of an empty shard."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fsdp_migrate.runtime import fsdp2_support as support
from tests.helpers.migrating import migrate
from tests.training.programs import Launcher

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def clip(parameters, kind):
    torch.nn.utils.clip_grad_norm_(parameters, 0.1, norm_type=kind)


def train(model, sharded, kind):
    if sharded:
        model = FSDP(model, use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(4, 6)).square().mean()
        loss.backward()
        clip(model.parameters(), kind)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 4))
    return losses


def main():
    dist.init_process_group("gloo")
    for kind, last in ((1.0, 1), (2.0, 1), (3.0, 1), (float("inf"), 2), (float("inf"), 1)):
        for sharded in (False, True):
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, last))
            print("losses", kind, last, *train(model, sharded, kind), flush=True)
    dist.destroy_process_group()


main()
"""


@pytest.mark.train
def test_it_clips_as_of_a_plain_model(launcher: Launcher, tmp_path: Path) -> None:
    result, after = migrate({"train.py": PROGRAM})
    assert not [d for d in result.decisions if d.guarded]
    script = tmp_path / "after.py"
    script.write_text(after["train.py"])
    output = launcher.script(script, fsdp1="forbid", fails=True).output[0]
    lines = [line for line in output.splitlines() if line.startswith("losses ")]
    plain, sharded = lines[:8:2], lines[1:8:2]
    assert len(sharded) == 4
    assert plain == sharded
    assert all(len(set(line.split()[3:])) == 3 for line in plain)
    # A bias of one number: one of two ranks has nothing of it, and stops.
    assert len(lines) == 9


def test_the_infinity_norm_of_a_plain_model_needs_no_process_group() -> None:
    own, others = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    others.load_state_dict(own.state_dict())
    for model in (own, others):
        model(torch.ones(2, 3)).square().sum().backward()
    found = support.clip_any_grad_norm_(own, 0.1, float("inf"))
    wanted = torch.nn.utils.clip_grad_norm_(others.parameters(), 0.1, norm_type=float("inf"))
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(own.weight.grad, others.weight.grad)
