"""``no_sync`` of models that are FSDP's or another wrapper's, behind a test that tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def main(sharded):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    model = FSDP(net, device_id=torch.device("cpu")) if sharded else DDP(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(2):
        for number in range(3):
            waits = number < 2
            inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank() + number
            with model.no_sync() if TEST and waits else nullcontext():
                loss = model(inputs).pow(2).mean()
                loss.backward()
            print("loss", loss.item())
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


main("sharded" in sys.argv)
"""


@pytest.mark.parametrize("test", ["isinstance(model, FSDP)", "sharded"])
@pytest.mark.parametrize("word", ["sharded", "replicated"])
def test_other_models_get_there_as_before(
    launcher: Launcher, tmp_path: Path, word: str, test: str
) -> None:
    both = written({"train.py": PROGRAM.replace("TEST", test).encode()}, tmp_path)
    assert "with no_sync(model) if " in both.text()
    before = launcher.script(both.before, word, fsdp1="allow")
    after = launcher.script(both.after, word, fsdp1="forbid")
    assert compare(before, after) == 12


OWN_CLASS = """\


class Quiet(nn.Linear):
    @contextmanager
    def no_sync(self):
        print("own")
        yield


def may_wait(model, waits):
    return model.no_sync() if waits and hasattr(model, "no_sync") else nullcontext()


def main("""


@pytest.mark.parametrize("word", ["sharded", "own"])
def test_a_class_of_the_projects_own_gets_there_as_before(
    launcher: Launcher, tmp_path: Path, word: str
) -> None:
    program = PROGRAM.replace("import nullcontext", "import contextmanager, nullcontext")
    program = program.replace("\n\ndef main(", OWN_CLASS, 1).replace("DDP(net)", "Quiet(4, 2)")
    program = program.replace(
        "model.no_sync() if TEST and waits else nullcontext()", "may_wait(model, waits)"
    )
    both = written({"train.py": program.encode()}, tmp_path)
    assert "no_sync_of_any(model" in both.text()
    before = launcher.script(both.before, word, fsdp1="allow")
    after = launcher.script(both.after, word, fsdp1="forbid")
    assert compare(before, after) == 12


WRAPS = {
    "what is compiled": "FSDP(torch.compile(net, backend='eager'), device_id=torch.device('cpu'))",
    "then compiled": "torch.compile(FSDP(net, device_id=torch.device('cpu')), backend='eager')",
}


@pytest.mark.parametrize("word", ["sharded", "replicated"])
@pytest.mark.parametrize("wrap", WRAPS)
def test_so_do_models_that_are_compiled(
    launcher: Launcher, tmp_path: Path, wrap: str, word: str
) -> None:
    program = PROGRAM.replace('FSDP(net, device_id=torch.device("cpu"))', WRAPS[wrap])
    program = program.replace(
        "            with model.no_sync() if TEST and waits else nullcontext():",
        "            quiet = model.no_sync() if waits else nullcontext()\n            with quiet:",
    )
    both = written({"train.py": program.encode()}, tmp_path)
    assert "no_sync_of_any(model)" in both.text()
    before = launcher.script(both.before, word, fsdp1="allow")
    after = launcher.script(both.after, word, fsdp1="forbid")
    assert compare(before, after) == 12
