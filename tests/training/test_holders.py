"""Modules that are not sharded themselves, and hold parts that are: whole states, as FSDP1 gave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys
import safetensors.torch
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = FSDP(
            nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4)),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.norm(self.trunk(x)))


class Outer(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.net(x) * self.scale


class Box(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def show(title, state):
    for name, value in state.items():
        print(title, name, type(value).__name__, tuple(value.shape), value.double().sum().item())


def step(net, optimizer):
    loss = net(torch.arange(12.0).view(3, 4) / 7 + dist.get_rank()).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())


def whole(path):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    step(net, optimizer)
    torch.save(net.state_dict(), path)
    show("file", torch.load(path))
    kept = {k: v.clone() for k, v in net.state_dict().items()}
    best = net.state_dict()
    step(net, optimizer)
    show("best", best)
    show("trunk", net.trunk.state_dict())
    print(net.load_state_dict(torch.load(path)))
    show("loaded", net.state_dict())
    print(net.load_state_dict({"head.bias": torch.ones(1)}, strict=False))
    states = FSDP.optim_state_dict(net, optimizer)["state"]
    for name in sorted(states):
        show(name, dict(sorted(states[name].items())))


def outer(path):
    torch.manual_seed(0)
    net = Outer(Net())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, optimizer)
    if dist.get_rank() == 0:
        print("saving")
    torch.save({"model": net.state_dict()}, path)
    show("file", torch.load(path)["model"])
    with FSDP.state_dict_type(
        net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)
    ):
        state = net.state_dict()
    show("rank 0", state)
    net.load_state_dict(torch.load(path)["model"])
    step(net, optimizer)


def listed(path):
    torch.manual_seed(0)
    net = nn.Sequential(FSDP(nn.Linear(4, 4), device_id=torch.device("cpu")), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, optimizer)
    show("state", net.state_dict())


def replaced(path):
    torch.manual_seed(0)
    net = Outer(Net())
    net.net.trunk = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 4))
    shard_layers(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, optimizer)
    torch.save(net.state_dict(), path)
    show("file", torch.load(path))
    net.load_state_dict(torch.load(path))
    step(net, optimizer)


def shard_layers(module):
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, FSDP(child, device_id=torch.device("cpu"), use_orig_params=True))
        else:
            shard_layers(child)


def several(path):
    torch.manual_seed(0)
    nets, named = [], {}
    for name in "ab":
        nets.append(FSDP(nn.Linear(4, 1), device_id=torch.device("cpu")))
        named[name] = FSDP(nn.Linear(4, 2), device_id=torch.device("cpu"))
    for net in nets:
        step(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for net in nets:
        show("net", net.state_dict())
    for name, net in named.items():
        torch.save(net.state_dict(), path + name)
        show(name, torch.load(path + name))


def given(path):
    torch.manual_seed(0)
    net = FSDP(nn.Linear(4, 1), device_id=torch.device("cpu"), use_orig_params=True)
    net = Box(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, optimizer)
    torch.save(net.state_dict(), path)
    show("file", torch.load(path))
    net.load_state_dict(torch.load(path))
    step(net, optimizer)


def asked(path):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, optimizer)
    safetensors.torch.save_model(net, path)
    show("file", safetensors.torch.load_file(path))
    safetensors.torch.load_model(net, path)
    step(net, optimizer)


def main(directory, kind):
    dist.init_process_group("gloo")
    kinds = {"whole": whole, "outer": outer, "listed": listed, "asked": asked}
    kinds |= {"replaced": replaced, "several": several, "given": given}
    kinds[kind](f"{directory}/{dist.get_rank()}.pt")
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


KINDS = ("whole", "outer", "listed", "asked", "replaced", "several", "given")


@pytest.mark.parametrize("kind", KINDS)
def test_they_give_and_take_whole_states(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, str(both.before.parent), kind, fsdp1="allow")
    after = launcher.script(both.after, str(both.after.parent), kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 5


def test_asked_as_it_was_the_file_has_one_ranks_shards(launcher: Launcher, tmp_path: Path) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    asked = "get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))"
    text = both.text()
    assert asked in text
    both.after.write_text(text.replace(asked, "net.state_dict()"))
    before = launcher.script(both.before, str(both.before.parent), "listed", fsdp1="allow")
    naive = launcher.script(both.after, str(both.after.parent), "listed", fsdp1="forbid")
    assert "0.weight Tensor (4, 4)" in before.output[0]
    assert "0.weight DTensor" in naive.output[0]
