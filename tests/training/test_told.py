"""Programs that train with FSDP or with DDP: what is DDP's stays as it was, files included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, Pair, compare, written

pytestmark = pytest.mark.train

HEAD = """\
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


"""

TAIL = """\


def main(kind, given, written):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 1))
    if kind == "fsdp":
        model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        model = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if given != "none":
        load(model, given)
    for step in range(3):
        loss = model(torch.ones(2, 6)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
    save(model, written)
    dist.barrier()
    if dist.get_rank() == 0:
        for name, value in torch.load(written).items():
            print(name, type(value).__name__, tuple(value.shape), value.sum().item())
    dist.destroy_process_group()


main(*sys.argv[1:])
"""

KINDS = {
    "tested": """\
def save(model, path):
    if isinstance(model, FSDP):
        state = model.state_dict()
    else:
        state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)


def load(model, path):
    state = torch.load(path)
    if not isinstance(model, FSDP):
        model.load_state_dict(state)
        return
    model.load_state_dict(state)
""",
    "handed on": """\
def save_any(model, path):
    state = model.module.state_dict(prefix="module.")
    if dist.get_rank() == 0:
        torch.save(state, path)


def save(model, path):
    if isinstance(model, FSDP):
        state = model.state_dict()
        if dist.get_rank() == 0:
            torch.save(state, path)
    else:
        save_any(model, path)


def load(model, path):
    sharded = isinstance(model, FSDP)
    state = torch.load(path)
    model.load_state_dict(state, strict=True) if sharded else model.load_state_dict(state)
""",
    "matched": """\
def save(model, path):
    match model:
        case DDP():
            state = model.module.state_dict(prefix="module.")
        case FSDP() as sharded:
            state = sharded.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)


def load(model, path):
    state = torch.load(path)
    match model, state:
        case FSDP(), _:
            model.load_state_dict(state)
        case _, {}:
            model.load_state_dict(state)
""",
    "not tested": """\
def save(model, path):
    state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)


def load(model, path):
    model.load_state_dict(torch.load(path))
""",
}


@pytest.fixture(scope="module", params=KINDS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    text = HEAD + KINDS[request.param] + TAIL
    return written({"train.py": text.encode()}, tmp_path_factory.mktemp("told"))


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_files_of_either_wrapper_are_read(
    wrapper: str, program: Pair, launcher: Launcher, tmp_path: Path
) -> None:
    old, new = tmp_path / "old.pt", tmp_path / "new.pt"
    before = launcher.script(program.before, wrapper, "none", str(old))
    after = launcher.script(program.after, wrapper, "none", str(new))
    assert compare(before, after) > 3
    resumed = launcher.script(program.before, wrapper, str(old), str(tmp_path / "1.pt"))
    for file in (old, new):
        again = launcher.script(program.after, wrapper, str(file), str(tmp_path / "2.pt"))
        assert compare(resumed, again) > 3
