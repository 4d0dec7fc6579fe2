"""Runs that are saved and resumed in the ways of public repositories: each version resumes what it
saved as it should go on, and what FSDP1 saved as FSDP1 does, or says that it cannot."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.helpers.migrating import migrate
from tests.training.programs import Failed, Launcher, Pair, Run, written

pytestmark = pytest.mark.train

PROGRAM = """\
import argparse
import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir")
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    os.makedirs(args.dir, exist_ok=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1 + args.start)
    model = nn.Sequential(nn.Linear(5, 9), Block(9), Block(9), nn.Linear(9, 3))
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        device_mesh=init_device_mesh("cpu", (2,)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.8)
    if args.start:
LOAD
    for step in range(args.start, 6):
        torch.manual_seed(100 * step + rank)
        loss = model(torch.randn(6, 5)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        if rank == 0:
            print("loss", step, shown.item(), flush=True)
        if step == 2 and not args.start:
SAVE
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""

GUARDED = (
    """
    model_state = model.state_dict()
    if rank == 0:
        saved = {"model": model_state, "optimizer": optimizer.state_dict()}
        torch.save(saved, f"{args.dir}/saved.pt")
    """,
    """
    saved = torch.load(f"{args.dir}/saved.pt", weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    """,
)
BY_RANK = (
    """
    torch.save(optimizer.state_dict(), f"{args.dir}/{rank}.pt")
    model_state = model.state_dict()
    if rank == 0:
        torch.save(model_state, f"{args.dir}/model.pt")
    """,
    """
    model.load_state_dict(torch.load(f"{args.dir}/model.pt"))
    optimizer.load_state_dict(torch.load(f"{args.dir}/{rank}.pt", weights_only=False))
    """,
)
BY_TORCH = (
    """
    model_state, optimizer_state = get_state_dict(model, optimizer)
    torch.save({"model": model_state, "optimizer": optimizer_state}, f"{args.dir}/{rank}.pt")
    """,
    """
    saved = torch.load(f"{args.dir}/{rank}.pt", weights_only=False)
    set_state_dict(
        model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
    )
    """,
)
WHOLE_BY_TORCH = (
    """
    options = StateDictOptions(full_state_dict=True)
    model_state, optimizer_state = get_state_dict(model, optimizer, options=options)
    if rank == 0:
        saved = {"model": model_state, "optimizer": optimizer_state}
        torch.save(saved, f"{args.dir}/saved.pt")
    """,
    """
    saved = torch.load(f"{args.dir}/saved.pt", weights_only=False)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["model"],
        optim_state_dict=saved["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )
    """,
)
SUMMONED = (
    """
    with FSDP.summon_full_params(model, writeback=False):
        if rank == 0:
            torch.save(model.state_dict(), f"{args.dir}/model.pt")
    optimizer_state = FSDP.full_optim_state_dict(model, optimizer)
    if rank == 0:
        torch.save(optimizer_state, f"{args.dir}/optimizer.pt")
    """,
    """
    with FSDP.summon_full_params(model):
        model.load_state_dict(torch.load(f"{args.dir}/model.pt"))
    whole = torch.load(f"{args.dir}/optimizer.pt", weights_only=False) if rank == 0 else None
    part = FSDP.scatter_full_optim_state_dict(whole, model, optim=optimizer)
    optimizer.load_state_dict(part)
    """,
)
NOT_LOADED = (
    """
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=args.dir)
    """,
    """
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=args.dir)
    """,
)
STORED_AND_NOT_LOADED = (
    """
    state = {"model": get_model_state_dict(model)}
    state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    dcp.save(state, checkpoint_id=args.dir)
    """,
    """
    state = {"model": get_model_state_dict(model)}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    dcp.load(state, checkpoint_id=args.dir)
    """,
)


def source(ways: tuple[str, str]) -> str:
    save, load = ("\n" + textwrap.dedent(each).strip("\n") for each in ways)
    saving, loading = (textwrap.indent(s.strip("\n"), " " * n) for s, n in ((save, 12), (load, 8)))
    return PROGRAM.replace("SAVE", saving).replace("LOAD", loading)


class Program:
    """Both versions of a program that saves after three steps, and what it does as it goes on."""

    def __init__(
        self, ways: tuple[str, str], scratch: Path, launcher: Launcher, rate: str = "lr=0.01"
    ) -> None:
        text = source(ways).replace("lr=0.01", rate)
        self.pair: Pair = written({"train.py": text.encode()}, scratch)
        self.scratch, self.launcher = scratch, launcher
        self.old, self.new = self.run("before", "fsdp1"), self.run("after", "migrated")

    def run(self, version: str, files: str, start: int = 0) -> list[float]:
        before = version == "before"
        script = self.pair.before if before else self.pair.after
        given = ("--dir", str(self.scratch / files), "--start", str(start))
        ended: Run = self.launcher.script(script, *given, fsdp1="allow" if before else "forbid")
        return ended.numbers("loss")


@pytest.mark.parametrize(
    "ways", [BY_TORCH, WHOLE_BY_TORCH, SUMMONED], ids=["torch's", "torch's whole", "summoned"]
)
def test_what_fsdp1_saved_is_resumed_as_by_fsdp1(
    ways: tuple[str, str], launcher: Launcher, tmp_path: Path
) -> None:
    program = Program(ways, tmp_path, launcher)
    assert program.new == pytest.approx(program.old, rel=1e-6)
    expected = program.run("before", "fsdp1", 3)
    assert program.run("after", "migrated", 3) == pytest.approx(expected, rel=1e-6)
    assert program.run("after", "fsdp1", 3) == pytest.approx(expected, rel=1e-6)


def test_an_optimizer_that_divides_by_its_state_alone_is_resumed(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Torch's functions take a step without gradients first: 0 / 0 in every parameter."""
    program = Program(SUMMONED, tmp_path, launcher, "lr=0.01, eps=0")
    assert program.new == pytest.approx(program.old, rel=1e-6)
    expected = program.run("before", "fsdp1", 3)
    assert program.run("after", "migrated", 3) == pytest.approx(expected, rel=1e-6)
    assert program.run("after", "fsdp1", 3) == pytest.approx(expected, rel=1e-6)


def test_a_state_that_each_rank_saves_is_resumed_and_fsdp1s_is_refused(
    launcher: Launcher, tmp_path: Path
) -> None:
    program = Program(BY_RANK, tmp_path, launcher)
    assert "do not load" in " ".join(program.pair.text().replace("#", "").split())
    expected = program.run("before", "fsdp1", 3)
    assert program.run("after", "migrated", 3) == pytest.approx(expected, rel=1e-6)
    with pytest.raises(Failed):
        program.run("after", "fsdp1", 3)


def test_a_state_that_one_rank_saves_is_whole(launcher: Launcher, tmp_path: Path) -> None:
    """FSDP1 resumed with rank 0's part on every rank, without a word."""
    program = Program(GUARDED, tmp_path, launcher)
    by_rank = Program(BY_RANK, tmp_path / "by_rank", launcher)
    right = by_rank.run("before", "fsdp1", 3)
    wrong = program.run("before", "fsdp1", 3)
    assert wrong[1] != pytest.approx(right[1], rel=1e-3)
    # The scheduler goes on from the start in both.
    assert program.run("after", "migrated", 3) == pytest.approx(right, rel=1e-6)
    with pytest.raises(Failed):
        program.run("after", "fsdp1", 3)


@pytest.mark.parametrize("ways", [NOT_LOADED, STORED_AND_NOT_LOADED], ids=["written", "stored"])
def test_what_is_read_and_not_loaded_is_marked(
    ways: tuple[str, str], launcher: Launcher, tmp_path: Path
) -> None:
    """FSDP1 changed nothing, FSDP2 has the weights and not the learning rate."""
    program = Program(ways, tmp_path, launcher)
    assert "FSDP313" in program.pair.text()
    unchanged = program.run("before", "fsdp1", 3)
    assert program.run("after", "migrated", 3)[0] != pytest.approx(unchanged[0], rel=1e-3)


def test_a_load_among_other_code_on_whole_parameters_is_left() -> None:
    save, load = SUMMONED
    load = load.replace('.pt"))\n', '.pt"))\n        print(model)\n', 1)
    result, after = migrate({"train.py": source((save, load))})
    left = [d for d in result.decisions if d.outcome.name == "LEFT"]
    assert any("whole here" in d.message for d in left)
    assert "model.load_state_dict(" in after["train.py"]


BOX = """\
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Box:
    def __init__(self, model):
        self.model = model

    def save(self, path):
        state = self.model.state_dict()
        if int(os.environ["RANK"]) == 0:
            torch.save(state, path)

    def load(self, path):
        self.model.load_state_dict(torch.load(path))


torch.manual_seed(len(sys.argv))
model = nn.Linear(5, 3)
if int(os.environ["WORLD_SIZE"]) > 1:
    dist.init_process_group("gloo")
    model = FSDP(model, device_id=torch.device("cpu"))
box = Box(model)
if len(sys.argv) > 2:
    box.load(sys.argv[1])
print("loss", model(torch.ones(2, 5)).square().mean().item())
box.save(sys.argv[1])
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_box_is_loaded_with_and_without_a_process_group(
    ranks: int, launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": BOX.encode()}, tmp_path)
    path = str(tmp_path / "saved.pt")
    saved = launcher.script(both.before, path, ranks=ranks, fsdp1="allow").numbers("loss")
    for script, fsdp1 in ((both.before, "allow"), (both.after, "forbid")):
        found = launcher.script(script, path, "load", ranks=ranks, fsdp1=fsdp1).numbers("loss")
        assert found == pytest.approx(saved, rel=1e-6)
