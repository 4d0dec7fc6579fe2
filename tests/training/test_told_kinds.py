"""States of a kind that the context around the calls says, by settings of the running program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.programs import Launcher, compare, written

pytestmark = pytest.mark.train

PROGRAM = """\
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    FullyShardedDataParallel as FSDP,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Settings:
    def __init__(self, name):
        self.kind = StateDictType[name]
        self.config = self.optim = None
        if name == "FULL_STATE_DICT":
            self.config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
            self.optim = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
        elif len(sys.argv) > 2:
            self.config = ShardedStateDictConfig(offload_to_cpu=True)
            self.optim = ShardedOptimStateDictConfig(offload_to_cpu=True)


def step(model, optimizer):
    loss = model(torch.ones(2, 4) + dist.get_rank()).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", loss.item())


def save(model, optimizer, settings):
    with FSDP.state_dict_type(model, settings.kind, settings.config, settings.optim):
        weights = model.state_dict()
        optim_state = FSDP.optim_state_dict(model, optimizer)
    return {"model": weights, "optimizer": optim_state}


def load(model, optimizer, settings, saved):
    if settings.kind == StateDictType.FULL_STATE_DICT:
        box = [saved["model"]]
        dist.broadcast_object_list(box, src=0)
        saved["model"] = box[0]
    with FSDP.state_dict_type(model, settings.kind, settings.config, settings.optim):
        model.load_state_dict(saved["model"])
        state = FSDP.optim_state_dict_to_load(model, optimizer, saved["optimizer"])
        optimizer.load_state_dict(state)


def main(name, *rest):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    settings = Settings(name)
    step(model, optimizer)
    step(model, optimizer)
    saved = save(model, optimizer, settings)
    print("saved", len(saved["model"]), len(saved["optimizer"].get("state", {})))
    step(model, optimizer)
    load(model, optimizer, settings, saved)
    step(model, optimizer)
    step(model, optimizer)
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize(
    "arguments", [("FULL_STATE_DICT",), ("SHARDED_STATE_DICT",), ("SHARDED_STATE_DICT", "cpu")]
)
def test_training_goes_on_from_a_state_of_the_kind_that_the_program_is_told(
    arguments: tuple[str, ...], launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": PROGRAM.encode()}, tmp_path)
    before = launcher.script(both.before, *arguments, fsdp1="allow")
    after = launcher.script(both.after, *arguments, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 8
    assert "state_dict_type(" not in both.after.read_text()


MANAGER = (
    PROGRAM[: PROGRAM.index("def save(")]
    + """\
class Base:
    def weights(self):
        return self.model.state_dict()


class Plain(Base):
    def wrap(self, net):
        self.model = net


class Manager(Base):
    def __init__(self, name):
        self.choose(Settings(name))

    def choose(self, settings):
        self.kind, self.config, self.optim = settings.kind, settings.config, settings.optim

    def wrap(self, net):
        self.model = FSDP(
            net,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.device("cpu"),
            use_orig_params=True,
        )
        FSDP.set_state_dict_type(self.model, self.kind, self.config, self.optim)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)

    def weights(self):
        return self.model.state_dict()

    def save(self):
        state = FSDP.optim_state_dict(self.model, self.optimizer)
        return {"model": self.weights(), "optimizer": state}

    def load(self, saved):
        if self.kind == StateDictType.FULL_STATE_DICT:
            box = [saved["model"]]
            dist.broadcast_object_list(box, src=0)
            saved["model"] = box[0]
        keys = self.model.load_state_dict(saved["model"])
        print("missing", len(keys.missing_keys), len(keys.unexpected_keys))
        state = FSDP.optim_state_dict_to_load(self.model, self.optimizer, saved["optimizer"])
        self.optimizer.load_state_dict(state)


def main(name, *rest):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    plain = Plain()
    plain.wrap(nn.Linear(2, 2))
    print("plain", len(plain.weights()))
    manager = Manager(name)
    manager.wrap(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)))
    step(manager.model, manager.optimizer)
    step(manager.model, manager.optimizer)
    saved = manager.save()
    print("saved", len(saved["model"]), len(saved["optimizer"].get("state", {})))
    print("on", *[f"{k} {v.device} {tuple(v.shape)}" for k, v in saved["model"].items()])
    step(manager.model, manager.optimizer)
    manager.load(saved)
    step(manager.model, manager.optimizer)
    step(manager.model, manager.optimizer)
    dist.destroy_process_group()


main(*sys.argv[1:])
"""
)


@pytest.mark.parametrize(
    "arguments", [("FULL_STATE_DICT",), ("SHARDED_STATE_DICT",), ("SHARDED_STATE_DICT", "cpu")]
)
def test_methods_of_an_object_ask_for_the_kind_that_it_keeps(
    arguments: tuple[str, ...], launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": MANAGER.encode()}, tmp_path)
    before = launcher.script(both.before, *arguments, fsdp1="allow")
    after = launcher.script(both.after, *arguments, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 8
    text = both.after.read_text()
    assert "set_state_dict_type(" not in text
    assert "        return self.model.state_dict()\n\n\nclass Plain" in text


GIVEN_BACK = {
    "        state = FSDP.optim_state_dict(self.model, self.optimizer)\n"
    '        return {"model": self.weights(), "optimizer": state}\n': (
        "        return self.weights(), FSDP.optim_state_dict(self.model, self.optimizer)\n"
    ),
    "    def load(self, saved):\n": (
        "    def load(self, weights, kept):\n"
        '        saved = {"model": weights, "optimizer": kept}\n'
    ),
}
IN_A_LOOP = """\
    for n in range(7):
        step(manager.model, manager.optimizer)
        if n == 2:
            saved = manager.save()
        if n == 4:
            manager.load(*saved)
    dist.destroy_process_group()


main(*sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_states_that_are_given_back_a_step_later_are_copies(
    kind: str, launcher: Launcher, tmp_path: Path
) -> None:
    program = MANAGER
    for old, text in GIVEN_BACK.items():
        assert old in program
        program = program.replace(old, text)
    program = program[: program.index("    step(manager.model")] + IN_A_LOOP
    both = written({"train.py": program.encode()}, tmp_path)
    before = launcher.script(both.before, kind, fsdp1="allow")
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 8
    assert "set_state_dict_type(" not in both.after.read_text()


CHOOSING = (
    PROGRAM[: PROGRAM.index("class Settings:")].replace(
        "import sys\n", "import sys\nfrom contextlib import contextmanager\n"
    )
    + """\
@contextmanager
def states(model, kind="full"):
    config = optim = None
    if kind == "full":
        wanted = StateDictType.FULL_STATE_DICT
        config = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
        optim = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
    elif kind == "sharded":
        wanted = StateDictType.SHARDED_STATE_DICT
        config = ShardedStateDictConfig()
        if torch.__version__ >= "2.0":
            config = ShardedStateDictConfig(offload_to_cpu=True)
            optim = ShardedOptimStateDictConfig()
    else:
        raise ValueError(kind)
    with FSDP.state_dict_type(model, wanted, config, optim):
        yield


"""
    + PROGRAM[PROGRAM.index("def step(") :]
    .replace(
        "FSDP.state_dict_type(model, settings.kind, settings.config, settings.optim)",
        "states(model, settings)",
    )
    .replace("settings.kind == StateDictType.FULL_STATE_DICT", 'settings == "full"')
    .replace("    settings = Settings(name)\n", "    settings = name\n")
)


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_calls_tell_the_kind_by_its_name_as_the_context_manager_did(
    kind: str, launcher: Launcher, tmp_path: Path
) -> None:
    both = written({"train.py": CHOOSING.encode()}, tmp_path)
    before = launcher.script(both.before, kind, fsdp1="allow")
    after = launcher.script(both.after, kind, fsdp1="forbid")
    assert compare(before, after, tolerance=1e-5, atol=1e-6) > 8
    assert "def states(" not in both.after.read_text()
