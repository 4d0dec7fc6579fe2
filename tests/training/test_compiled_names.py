"""States of compiled models: FSDP1 gave them the names that ``torch.compile`` makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def compiled(module):
    return torch.compile(module, backend="eager")


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    PARTS
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    whole = WHOLE
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(2):
        loss = whole(inputs).pow(2).mean()
        loss.backward()
        print("loss", loss.item())
        optimizer.step()
        optimizer.zero_grad()
    for name, value in ASKED.state_dict().items():
        print("state", name, value.sum().item())
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize(
    ("parts", "whole", "asked", "differ"),
    [
        ("", "compiled(model)", "whole", True),
        ("net = compiled(net)", "model", "whole", True),
        ("net[0] = torch.compile(net[0], backend='eager')", "model", "model", True),
        ("", "torch.compile(model, backend='eager')", "model", False),
    ],
)
def test_other_names_are_marked(
    launcher: Launcher, tmp_path: Path, parts: str, whole: str, asked: str, differ: bool
) -> None:
    text = PROGRAM.replace("PARTS", parts).replace("WHOLE", whole).replace("ASKED", asked)
    both = written({"train.py": text.encode()}, tmp_path)
    assert ("'_orig_mod.' in them" in both.text()) == differ
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert ("_orig_mod." in before.output[0]) == differ
    assert "_orig_mod." not in after.output[0]
    if not differ:
        assert compare(before, after) == 20
    assert sum(after.numbers("state")) == pytest.approx(sum(before.numbers("state")))


RESUMED = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(path, fsdp):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model = torch.compile(model, backend="eager")
    if os.path.exists(path):
        state = torch.load(path)
        LOAD
    dist.barrier()
    inputs = torch.arange(8.0).view(2, 4) / 3 + dist.get_rank()
    for step in range(3):
        loss = model(inputs).pow(2).mean()
        loss.backward()
        print("loss", loss.item())
        optimizer.step()
        optimizer.zero_grad()
    state = FSDP.optim_state_dict(model, optimizer)
    if dist.get_rank() == 0 and not os.path.exists(path):
        torch.save(state, path)
    dist.destroy_process_group()


main(sys.argv[1], fsdp=True)
"""


@pytest.mark.parametrize(
    "load",
    [
        "state = FSDP.optim_state_dict_to_load(model, optimizer, state)\n"
        "        optimizer.load_state_dict(state)",
        "if fsdp:\n"
        "            state = FSDP.optim_state_dict_to_load(model, optimizer, state)\n"
        "        optimizer.load_state_dict(state)",
    ],
)
def test_an_old_optimizer_file_of_a_compiled_model_is_loaded(
    launcher: Launcher, tmp_path: Path, load: str
) -> None:
    both = written({"train.py": RESUMED.replace("LOAD", load).encode()}, tmp_path)
    path = str(tmp_path / "optimizer.pt")
    fresh = launcher.script(both.before, path, fsdp1="allow")
    before = launcher.script(both.before, path, fsdp1="allow")
    after = launcher.script(both.after, path, fsdp1="forbid")
    assert fresh.numbers("loss") != before.numbers("loss")
    assert compare(before, after) == 6
