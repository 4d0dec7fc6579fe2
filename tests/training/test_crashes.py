"""Programs whose migrated form would end with an error if one reference were overlooked."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import session
from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def sharded(model):
    return FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)


"""

TAIL = """\


dist.init_process_group("gloo")
torch.manual_seed(0)
main()
dist.destroy_process_group()
"""

PROGRAMS = {
    "a state that is deleted after it was loaded": """\
def load(model, optimizer, state):
    saved = state if dist.get_rank() == 0 else None
    parts = FSDP.scatter_full_optim_state_dict(saved, model)
    optimizer.load_state_dict(parts)
    del saved, parts


def main():
    model = sharded(nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state = FSDP.full_optim_state_dict(model, optimizer)
        load(model, optimizer, state)
        print("loss", loss.item())
""",
    "the rank and the number of ranks of a model": """\
def main():
    model = sharded(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.arange(32.0).reshape(8, 4) / 32
    for batch in batches[model.rank :: model.world_size]:
        loss = model(batch).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", model.rank, loss.item())
""",
    "parts that are asked one by one": """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(sharded(nn.Linear(4, 4)) for _ in range(2))
        self.heads = nn.ModuleDict({name: sharded(nn.Linear(4, 1)) for name in "ab"})

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return sum(head(x) for head in self.heads.values())


def main():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        for index, layer in enumerate(model.layers):
            print("norm", index, layer.clip_grad_norm_(0.1).item())
        for head in model.heads.values():
            head.clip_grad_norm_(0.1)
        print("head", model.heads["a"].clip_grad_norm_(0.1).item())
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())
""",
    "a model that is wrapped again by who is given it": """\
from torch.distributed.fsdp import MixedPrecision


def in_half(model):
    half = MixedPrecision(param_dtype=torch.bfloat16)
    return FSDP(model, device_id=torch.device("cpu"), mixed_precision=half)


def main():
    words = nn.Sequential(nn.Embedding(4, 4), nn.Flatten(), nn.Linear(8, 1))
    models = {
        "cast by neither": (FSDP(in_half(words), device_id=torch.device("cpu")), [[0, 1], [2, 3]]),
        "not cast": (sharded(sharded_by_two(nn.Linear(2, 1))), [[0.1, 1.0], [2.0, 3.0]]),
    }
    for name, (model, values) in models.items():
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            loss = model(torch.tensor(values)).float().pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print("loss", name, loss.item())


def sharded_by_two(model):
    model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
    model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
    return model
""",
}

# The engine, which has the model and says nothing of FSDP, hands it on to the other files.
FILES = {
    "train.py": HEAD
    + """\
from engine import train
from scaler import Scaler


def main():
    scaler = Scaler()
    train(sharded(nn.Linear(4, 2)), scaler)
"""
    + TAIL,
    "engine.py": """\
import torch
from saving import save


def train(model, loss_scaler):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = model(torch.ones(2, 4) * step).pow(2).mean()
        loss_scaler(loss, optimizer, model, clip=0.1, update=step % 2 == 1)
        print("loss", loss.item())
    save(model, "state.pt")
""",
    "saving.py": """\
import torch
import torch.distributed as dist


def save(model, path):
    state = model.state_dict()
    if dist.get_rank() == 0:
        torch.save(state, path)
        for name, value in torch.load(path).items():
            print(name, type(value).__name__, tuple(value.shape), value.sum().item())
""",
    "scaler.py": """\
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler


class Scaler:
    def __init__(self):
        self._scaler = ShardedGradScaler(enabled=False)

    def __call__(self, loss, optimizer, model, clip, update):
        if not update:
            with model.no_sync():
                self._scaler.scale(loss).backward()
            return
        self._scaler.scale(loss).backward()
        self._scaler.unscale_(optimizer)
        print("norm", model.clip_grad_norm_(clip).item())
        self._scaler.step(optimizer)
        self._scaler.update()
        optimizer.zero_grad()
""",
}


def test_files_without_fsdp_hand_models_on(launcher: Launcher, tmp_path: Path) -> None:
    for version in ("before", "after"):
        (tmp_path / version).mkdir()
        for name, text in FILES.items():
            (tmp_path / version / name).write_text(text)
    run = session.run([tmp_path / "after"])
    assert run.result.changes.keys() >= {tmp_path / "after" / n for n in ("saving.py", "scaler.py")}
    for path, data in run.result.changes.items():
        path.write_bytes(data)
    before = launcher.script(tmp_path / "before" / "train.py", fsdp1="allow")
    after = launcher.script(tmp_path / "after" / "train.py", fsdp1="forbid")
    assert compare(before, after) >= 14


@pytest.mark.parametrize("name", PROGRAMS)
def test_trains_the_same(name: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": (HEAD + PROGRAMS[name] + TAIL).encode()}, tmp_path)
    before = launcher.script(both.before, fsdp1="allow")
    after = launcher.script(both.after, fsdp1="forbid")
    assert compare(before, after) >= 3


OVER_TENSOR_PARALLELISM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4), nn.LayerNorm(4))
parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
model = FSDP(
    model, device_mesh=mesh["data"], device_id=torch.device("cpu"), use_orig_params=True
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.ones(2, 4)).sub(2).square().mean()
    loss.backward()
    norm = float(model.clip_grad_norm_(100.0))
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())
"""


def test_clips_parameters_on_two_meshes(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": OVER_TENSOR_PARALLELISM.encode()}, tmp_path)
    before = launcher.script(both.before, ranks=4, fsdp1="allow")
    after = launcher.script(both.after, ranks=4, fsdp1="forbid")
    assert compare(before, after) >= 3
