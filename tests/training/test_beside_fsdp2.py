"""FSDP1 beside FSDP2 under a flag: what each trains and saves, before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate
from tests.training.programs import Launcher

pytestmark = pytest.mark.train
SOURCE = """
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard


def wrap(net, version):
    if version == "1":
        return FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    fully_shard(net)
    return net


def main(version):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(5, 4), nn.Tanh()), version)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 5)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.8f}", flush=True)
    for name, value in model.state_dict().items():
        print(f"saved {name} {type(value).__name__}", flush=True)
    dist.destroy_process_group()


main(sys.argv[1])
"""


@pytest.mark.parametrize(
    ("version", "saved", "saved_after"),
    [("1", "0.weight Tensor", "0.weight Tensor"), ("2", "0.weight DTensor", "0.weight Tensor")],
)
def test_both_train_as_before_and_save_as_fsdp1_did(
    version: str, saved: str, saved_after: str, launcher: Launcher, tmp_path: Path
) -> None:
    """That the other one saves something else now is what the marker says."""
    result, texts = migrate({"train.py": SOURCE})
    assert [d.code for d in result.decisions if d.outcome is Outcome.REVIEW] == ["FSDP302"]
    runs = []
    for name, text in (("before", SOURCE), ("after", texts["train.py"])):
        script = tmp_path / name / "train.py"
        script.parent.mkdir()
        script.write_text(text)
        runs.append(launcher.script(script, version, fsdp1="allow"))
    before, after = runs
    for word in ("step 0", "step 1", "step 2"):
        assert after.numbers(word) == pytest.approx(before.numbers(word), rel=1e-6)
        assert len(after.numbers(word)) == 1
    assert f"saved {saved}\n" in before.output[0]
    assert f"saved {saved_after}\n" in after.output[0]
