"""Models that ``super()`` hands to a method of a base class."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

BASE = """\
class Base:
    def __init__(self, model):
        self.model = model

    def keep(self, model):
        self.kept = model


class Between(Base):
    pass
"""
MAIN = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from base import Base, Between


class Trainer(BASE):
    def __init__(self, net, wrapped):
        INIT

    def save(self):
        return self.ATTRIBUTE.state_dict()


def main(net):
    trainer = Trainer(net, FSDP(net))
    return trainer.save()
"""
STATE = "get_model_state_dict(self.ATTRIBUTE"
CALLS = {
    "the constructor": ("super().__init__(wrapped)", "model"),
    "by name": ("super().__init__(model=wrapped)", "model"),
    "with the class": ("super(Trainer, self).__init__(wrapped)", "model"),
    "another method": ("super().keep(wrapped)", "kept"),
}


def after(call: str, attribute: str, base: str = "Base") -> str:
    text = MAIN.replace("INIT", call).replace("ATTRIBUTE", attribute).replace("BASE", base)
    _, files = migrate({"main.py": text, "base.py": BASE})
    return files["main.py"]


@pytest.mark.parametrize("base", ["Base", "Between"])
@pytest.mark.parametrize(("call", "attribute"), CALLS.values(), ids=CALLS)
def test_a_model_gets_to_the_base(call: str, attribute: str, base: str) -> None:
    assert STATE.replace("ATTRIBUTE", attribute) in after(call, attribute, base)


@pytest.mark.parametrize(("call", "attribute"), CALLS.values(), ids=CALLS)
def test_what_is_no_model_does_not(call: str, attribute: str) -> None:
    text = after(call.replace("wrapped)", "nn.Linear(2, 2))"), attribute)
    assert STATE.replace("ATTRIBUTE", attribute) not in text
