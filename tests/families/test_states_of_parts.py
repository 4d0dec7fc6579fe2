"""States of parts of a sharded model, which FSDP1's units gave whole."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x)

    def keep(self, path):
        torch.save(self.state_dict(), path)


class Net(nn.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer
        self.encoder = Encoder()
        self.layers = nn.ModuleList([nn.Linear(4, 4)])

    def forward(self, x):
        return self.layers[0](self.encoder(x))

    def save(self, path):
        torch.save({"state": self.state_dict()}, path)

    def save_all(self, path):
        self.save(path)


def main(tokenizer, optimizer):
    model = FSDP(Net(tokenizer), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
"""
WHOLE = "get_model_state_dict({}, options=StateDictOptions(full_state_dict=True)"
ASKED = {
    "of an attribute": ("torch.save(model.encoder.state_dict(), 'e.pt')", "model.encoder"),
    "of an item": ("torch.save(model.layers[0].state_dict(), 'e.pt')", "model.layers[0]"),
    "by a name": ("part = model.encoder\n    torch.save(part.state_dict(), 'e.pt')", "part"),
    "of the module inside": (
        "torch.save(model.module.encoder.state_dict(), 'e.pt')",
        "model.encoder",
    ),
    "by getattr": (
        "torch.save(getattr(model, 'encoder', model).state_dict(), 'e.pt')",
        "getattr(model, 'encoder', model)",
    ),
    "in its method": ("model.encoder.keep('e.pt')", "self"),
    "in the model's method": ("model.save('e.pt')", "self"),
    "in a method that it calls": ("model.save_all('e.pt')", "self"),
    "of a library's": ("model.encoder.save_pretrained('e')", "model.encoder"),
}


@pytest.mark.parametrize(("asked", "model"), ASKED.values(), ids=ASKED)
def test_a_part_gives_its_whole_state(asked: str, model: str) -> None:
    result, after = migrate({"example.py": f"{HEAD}    {asked}\n"})
    new = " ".join(after["example.py"].split()).replace("( ", "(")
    assert WHOLE.format(model)[:-1] in new
    assert not [d for d in result.decisions if d.outcome is Outcome.LEFT]


def test_a_context_for_a_part_goes() -> None:
    block = (
        "    settings = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)\n"
        "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, settings):\n"
        "        state = model.encoder.state_dict()\n"
        "    if torch.distributed.get_rank() == 0:\n"
        "        torch.save(state, 'e.pt')\n"
    )
    _, after = migrate({"example.py": HEAD + block})
    assert list(after) == ["example.py"]
    assert "state_dict_type" not in after["example.py"]
    assert "model.encoder, options=StateDictOptions(full_state_dict=True, cpu_offload=True)" in (
        " ".join(after["example.py"].split())
    )


def test_the_module_inside_by_getattr_is_no_part() -> None:
    asked = "torch.save(getattr(model, '_fsdp_wrapped_module', model).state_dict(), 'e.pt')"
    result, _ = migrate({"example.py": f"{HEAD}    {asked}\n"})
    assert {d.outcome for d in result.decisions if d.code == "FSDP302"} == {Outcome.REVIEW}


LOADED = "model.encoder.load_state_dict(torch.load('e.pt'))"


def test_a_part_takes_a_whole_state() -> None:
    _, after = migrate({"example.py": f"{HEAD}    {LOADED}\n"})
    assert "set_model_state_dict(" in after["example.py"]


OTHERS = {
    "an optimizer's": "torch.save(optimizer.state_dict(), 'o.pt')",
    "of what is no module": "model.tokenizer.save_pretrained('t')",
    "of an optimizer in an attribute": "torch.save(model.optimizer.state_dict(), 'o.pt')",
    "of a plain model": "net = Net(tokenizer)\n    torch.save(net.encoder.state_dict(), 'e.pt')",
    "in a plain model's method": "net = Net(tokenizer)\n    net.save('e.pt')",
    "in a plain part's method": "net = Net(tokenizer)\n    net.encoder.keep('e.pt')",
}


@pytest.mark.parametrize("asked", OTHERS.values(), ids=OTHERS)
def test_other_states_stay(asked: str) -> None:
    _, after = migrate({"example.py": f"{HEAD}    {asked}\n"})
    assert "get_model_state_dict" not in after["example.py"]


def test_a_state_of_its_own_stays_in_a_class_that_has_one() -> None:
    own = "    def state_dict(self):\n        return super().state_dict()\n\n    def save(self"
    text = HEAD.replace("    def save(self", own, 1)
    _, after = migrate({"example.py": f"{text}    model.save('e.pt')\n"})
    assert '{"state": self.state_dict()}' in after["example.py"]
