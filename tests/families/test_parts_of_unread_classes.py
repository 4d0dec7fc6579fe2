"""FSDP302 and FSDP303: states of models of classes that nobody here reads, whose parts are sharded
in the project."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap
from transformers import AutoModel, Trainer


"""
FULL = "get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))"
PROGRAMS = {
    "children that are wrapped in a function": """\
def shard(net):
    with enable_wrap(wrapper_cls=FSDP):
        for name, part in net.named_children():
            net.add_module(name, wrap(part))
    return net.cuda()


def main(rank):
    net = shard(AutoModel.from_pretrained("x"))
    train(net, torch.optim.AdamW(net.parameters()))
    state = net.state_dict()
    if rank == 0:
        torch.save(state, "net.pt")
""",
    "a part that is assigned": """\
def main(rank):
    net = AutoModel.from_pretrained("x")
    net.encoder = FSDP(net.encoder)
    train(net)
    state = net.state_dict()
    if rank == 0:
        torch.save(state, "net.pt")
""",
    "children of a parameter": """\
def main(net, rank):
    for name, part in net.named_children():
        setattr(net, name, FSDP(part))
    train(net)
    state = net.state_dict()
    if rank == 0:
        torch.save(state, "net.pt")
""",
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_states_of_models_with_sharded_parts_are_whole(program: str) -> None:
    result, after = migrate({"train.py": HEAD + program})
    assert f"state = {FULL}" in after["train.py"]
    assert {d.outcome for d in result.decisions} == {Outcome.REWRITTEN}
    assert not result.not_followed


OTHERS = {
    "another model beside it": """\
def main(rank):
    net = AutoModel.from_pretrained("x")
    net.encoder = FSDP(net.encoder)
    other = AutoModel.from_pretrained("y")
    torch.save(other.state_dict(), "other.pt")
""",
    "before a part is sharded": """\
def main(rank):
    net = AutoModel.from_pretrained("x")
    torch.save(net.state_dict(), "net.pt")
    net.encoder = FSDP(net.encoder)
""",
    "a trainer of a library": """\
def main(rank):
    trainer = Trainer()
    trainer.model = FSDP(trainer.model)
    torch.save(trainer.state_dict(), "trainer.pt")
    trainer.load_state_dict(torch.load("trainer.pt"))
""",
    "a class of the project that is no module": """\
class Keeper:
    def __init__(self, net):
        self.model = FSDP(net)

    def state_dict(self):
        return {"step": 1}

    def save(self):
        torch.save(self.state_dict(), "keeper.pt")
""",
}


@pytest.mark.parametrize("program", OTHERS.values(), ids=OTHERS)
def test_states_of_other_objects_stay(program: str) -> None:
    _, after = migrate({"train.py": HEAD + program})
    asked = [line for line in program.splitlines() if "state_dict" in line]
    assert all(line in after["train.py"].splitlines() for line in asked)
    assert "fully_shard(" in after["train.py"]
