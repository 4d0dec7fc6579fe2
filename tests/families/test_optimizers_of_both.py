"""An attribute that a base class keeps for a model in one class and for an optimizer in another."""

from __future__ import annotations

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


class Kept:
    def __init__(self, kept):
        self.kept = kept


class Model(Kept):
    def load_state_dict(self, state):
        self.kept.load_state_dict(state)


class Replica(Kept):
    def load_state_dict(self, state):
        self.kept.module.load_state_dict(state)


class Optimizer(Kept):
    def __init__(self, optimizer, module):
        super().__init__(optimizer)
        self.module = module

    def load_state_dict(self, state, new):
        if new:
            whole = FSDP.optim_state_dict_to_load(state, self.module, self.kept)
            self.kept.load_state_dict(whole)
        else:
            whole = FSDP.shard_full_optim_state_dict(state, self.module)
            self.kept.load_state_dict(whole)


def main(net):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    return Model(model), Replica(DDP(net)), Optimizer(optimizer, model)
"""


def test_what_fsdp1_made_for_an_optimizer_is_loaded_once() -> None:
    result, after = migrate({"example.py": PROGRAM})
    text = after["example.py"]
    assert not result.problems
    assert text.count("set_optimizer_state_dict(") == 2
    assert text.count("set_model_state_dict(") == 2  # of either model, by the base class
    assert "FSDP." not in text


def test_the_models_own_load_is_the_models() -> None:
    alone = PROGRAM.replace("            self.kept.load_state_dict(whole)\n", "            pass\n")
    _, after = migrate({"example.py": alone})
    assert "set_model_state_dict(" in after["example.py"]
