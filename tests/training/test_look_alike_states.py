"""Another library's FSDP beside torch's under a flag: states and unsynchronised steps of either."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, compare

pytestmark = pytest.mark.train
OTHER = """
from contextlib import nullcontext

from torch.nn.parallel import DistributedDataParallel


class FullyShardedDataParallel(DistributedDataParallel):
    def state_dict(self, *args, **kwargs):
        return {f"other.{k}": v for k, v in self.module.state_dict(*args, **kwargs).items()}

    def load_state_dict(self, state):
        self.module.load_state_dict({k.removeprefix("other."): v for k, v in state.items()})
"""
SOURCE = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from fairscale import FullyShardedDataParallel as Fair


def wrap(net, kind):
    if kind == "torch":
        return FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    return Fair(net)


def main(kind):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(5, 4), nn.Tanh()), kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(3):
        with model.no_sync():
            model(torch.randn(2, 5)).square().mean().backward()
        loss = model(torch.randn(2, 5)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.8f}", flush=True)
        state = model.state_dict()
        print(f"saved {sorted(state)} {[v.sum().item() for v in state.values()]}", flush=True)
        model.load_state_dict(state)
    dist.destroy_process_group()


main(sys.argv[1])
"""


@pytest.mark.parametrize("kind", ["torch", "fairscale"])
def test_each_trains_and_saves_as_before(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    result, texts = migrate({"train.py": SOURCE})
    assert all(d.outcome is not Outcome.LEFT for d in result.decisions)
    runs = []
    for name, text in (("before", SOURCE), ("after", texts["train.py"])):
        script = tmp_path / name / "train.py"
        script.parent.mkdir()
        script.write_text(text)
        (script.parent / "fairscale.py").write_text(OTHER)
        runs.append(launcher.script(script, kind, fsdp1="allow"))
    assert compare(*runs) >= 18
