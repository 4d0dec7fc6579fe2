"""Checkpoints cross the migration: what FSDP1 wrote, migrated code continues, and the reverse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.training.programs import Launcher, Pair, Run, pair

pytestmark = pytest.mark.train

SAVED, FURTHER = 3, 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair("rewriting/checkpoints", tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair("rewriting/distributed", tmp_path_factory.mktemp("sharded"))


# FSDP1 without use_orig_params cannot tell weights from biases.
KINDS = [("adamw", 0), ("adamw", 1), ("groups", 1), ("sgd", 0), ("sgd", 1)]
KINDS += [("momentum", 0), ("momentum", 1)]


@pytest.mark.parametrize(("optimizer", "original"), KINDS)
def test_whole_checkpoints_continue_on_the_other_side(
    optimizer: str, original: int, whole: Pair, launcher: Launcher, tmp_path: Path
) -> None:
    """The losses after loading are those that FSDP1 has when it loads its own file."""
    common = ("--optimizer", optimizer, "--original", str(original))

    def old(*arguments: str) -> Run:
        return launcher.script(whole.before, *common, *arguments, fsdp1="allow")

    def new(*arguments: str) -> Run:
        return launcher.script(whole.after, *common, *arguments, fsdp1="forbid")

    of_fsdp1, of_migrated = str(tmp_path / "fsdp1.pt"), str(tmp_path / "migrated.pt")
    old("--save", of_fsdp1)
    ours = new("--save", of_migrated)
    expected = old("--load", of_fsdp1).numbers("loss")
    assert len(expected) == FURTHER
    assert new("--load", of_fsdp1).numbers("loss") == pytest.approx(expected, rel=1e-6)
    assert new("--load", of_migrated).numbers("loss") == pytest.approx(expected, rel=1e-6)
    assert old("--load", of_migrated).numbers("loss") == pytest.approx(expected, rel=1e-6)
    check_same_file(of_fsdp1, of_migrated)
    check_plain_training(of_migrated, optimizer, ours.models[0][0]["parameters"], expected)


def test_names_of_fsdp1_in_a_file_are_cleaned_as_before(launcher: Launcher, tmp_path: Path) -> None:
    both = pair("rewriting/names", tmp_path)
    path = str(tmp_path / "fsdp1.pt")
    plain = launcher.script(both.before, "--save", path, fsdp1="allow").numbers("loss")
    assert any("_fsdp_wrapped_module." in name for name in torch.load(path))
    expected = launcher.script(both.before, "--load", path, fsdp1="allow").numbers("loss")
    found = launcher.script(both.after, "--load", path, fsdp1="forbid").numbers("loss")
    assert found == pytest.approx(expected, rel=1e-6)
    assert found != pytest.approx(plain, rel=1e-3)


def check_same_file(first: str, second: str) -> None:
    """Two files hold the same model and the same optimizer state, under the same names."""
    old, new = load(first), load(second)
    assert list(new["model"]) == list(old["model"])
    for name, tensor in old["model"].items():
        torch.testing.assert_close(new["model"][name], tensor, rtol=1e-6, atol=1e-7)
    assert set(new["optimizer"]["state"]) == set(old["optimizer"]["state"])
    for name, fields in old["optimizer"]["state"].items():
        assert new["optimizer"]["state"][name].keys() == fields.keys()
        for field, value in fields.items():
            other = new["optimizer"]["state"][name][field]
            torch.testing.assert_close(other, value, rtol=1e-5, atol=1e-8)
    groups = zip(old["optimizer"]["param_groups"], new["optimizer"]["param_groups"], strict=True)
    for group, other in groups:
        assert sorted(other["params"]) == sorted(group["params"])
        assert {**other, "params": 0} == {**group, "params": 0}


class Block(nn.Module):
    """As in the program, without anything distributed."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "groups": lambda model: torch.optim.AdamW(
        [
            {"params": [p for n, p in model.named_parameters() if "bias" in n], "weight_decay": 0},
            {"params": [p for n, p in model.named_parameters() if "weight" in n], "lr": 0.005},
        ],
        lr=0.01,
    ),
}


def check_plain_training(
    file: str, kind: str, trained: dict[str, torch.Tensor], expected: list[float]
) -> None:
    """A file loads into a plain model and a plain optimizer, which train on alike."""
    saved = load(file)
    model = nn.Sequential(nn.Linear(5, 8), Block(8), Block(8), nn.Linear(8, 3))
    model.load_state_dict(saved["model"])
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, trained[name])
    optimizer = OPTIMIZERS[kind](model)
    names = {p: n for n, p in model.named_parameters()}
    order = [names[p] for group in optimizer.param_groups for p in group["params"]]
    index = {name: place for place, name in enumerate(order)}
    state = {index[name]: fields for name, fields in saved["optimizer"]["state"].items()}
    groups = [
        {**group, "params": sorted(index[name] for name in group["params"])}
        for group in saved["optimizer"]["param_groups"]
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    losses = []
    for step in range(SAVED, SAVED + FURTHER):
        both = []
        for rank in range(2):
            torch.manual_seed(100 * step + rank)
            both.append(model(torch.randn(6, 5)).square().mean())
        loss = (both[0] + both[1]) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-5)


def load(file: str) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(file)  # weights only: nothing but plain tensors
    return loaded


@pytest.mark.parametrize("original", [0, 1])
@pytest.mark.parametrize("ranks", [2, 4])
def test_sharded_checkpoints_continue_on_any_number_of_ranks(
    original: int, ranks: int, sharded: Pair, launcher: Launcher, tmp_path: Path
) -> None:
    """A directory that FSDP1 wrote on two ranks, and the losses that training on would have had."""
    common = ("--original", str(original))
    saved, again = str(tmp_path / "fsdp1"), str(tmp_path / "migrated")
    launcher.script(sharded.before, *common, "--save", saved, fsdp1="allow")
    resumed = launcher.script(
        sharded.after, "--load", saved, "--first", "3", "--save", again, fsdp1="forbid", ranks=ranks
    )
    last = launcher.script(sharded.after, "--load", again, "--first", "6", fsdp1="forbid")
    whole = launcher.script(sharded.before, *common, "--steps", "9", fsdp1="allow").numbers("loss")
    assert resumed.numbers("loss") == pytest.approx(whole[3:6], rel=1e-6)
    assert last.numbers("loss") == pytest.approx(whole[6:], rel=1e-6)
