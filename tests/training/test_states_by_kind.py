"""States of a model that another model may stand for, or that a method is asked in a context."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

HEAD = """\
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Sequential):
    def trained(self):
        return [name for name, p in self.named_parameters() if p.requires_grad]


def show(title, state):
    for name, value in state.items():
        print(title, name, type(value).__name__, tuple(value.shape), value.double().sum().item())


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for n in range(steps):
        loss = model(torch.full((2, 4), 0.5 + n)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item())

"""
KINDS = """
def wrapped(net, kind):
    if kind == "fsdp":
        return FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    if kind == "ddp":
        return DistributedDataParallel(net)
    return net


def main(kind):
    if kind != "plain":
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = wrapped(nn.Linear(4, 3), kind)
    train(model, 3)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    show("saved", saved)
    train(model, 2)
    model.load_state_dict(saved)
    train(model, 2)
    if kind != "plain":
        dist.destroy_process_group()


main(*sys.argv[1:])
"""
CONTEXT = """
class Trainer:
    config = FullStateDictConfig(rank0_only=True)

    def __init__(self, net):
        self.model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)

    def save(self, model):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, self.config):
            def size(value):
                return value.numel()

            names = model.trained()
            state = {n: v.clone() for n, v in model.state_dict().items()}
            print(len(names), sum(map(size, state.values())))
        show("state", state)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    trainer = Trainer(Net(nn.Linear(4, 4), nn.Linear(4, 1)))
    train(trainer.model, 3)
    trainer.save(trainer.model)
    train(trainer.model, 2)
    dist.destroy_process_group()


main()
"""


@pytest.mark.parametrize(("kind", "ranks"), [("fsdp", 2), ("ddp", 2), ("plain", 1)])
def test_each_kind_of_model_gives_and_takes_its_own(
    kind: str, ranks: int, launcher: Launcher, tmp_path: Path
) -> None:
    pair = written({"train.py": (HEAD + KINDS).encode()}, tmp_path)
    assert "isinstance(model, FSDPModule)" in pair.text()
    before = launcher.script(pair.before, kind, ranks=ranks)
    after = launcher.script(pair.after, kind, ranks=ranks)
    assert compare(before, after) >= ranks * 9


def test_what_runs_in_a_context_that_goes(launcher: Launcher, tmp_path: Path) -> None:
    pair = written({"train.py": (HEAD + CONTEXT).encode()}, tmp_path)
    assert "state_dict_type" not in pair.text()
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert compare(before, after) >= 2 * 7
