"""States of an object out of sight, in the module inside of which parts are sharded."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

SOURCE = """\
from some import Root
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Base(Root):
    def __init__(self, module):
        self.module = module

    def state_dict(self):
        return self.module.state_dict()

    def load_state_dict(self, state):
        self.module.load_state_dict(state)


class Holder(Base):
    def __init__(self, module):
        super().__init__(module)
        inside = {inside}
        for name, child in {asked}.named_children():
            setattr({asked}, name, FSDP(child))
"""


@pytest.mark.parametrize(
    ("inside", "asked"),
    [
        ("None", "self.module"),
        ("None", "self.module.module"),
        ("None", "self.module.module.module"),
        ("self.module.module", "inside"),
    ],
)
def test_its_states_are_whole_ones(inside: str, asked: str) -> None:
    source = SOURCE.format(inside=inside, asked=asked)
    _, after = migrate({"train.py": source})
    assert "return get_model_state_dict(self.module, " in after["train.py"]
    assert "set_model_state_dict(\n            self.module,\n" in after["train.py"]


def test_a_trainer_that_has_the_model_gives_its_own() -> None:
    source = SOURCE.format(inside="None", asked="self.module.model")
    _, after = migrate({"train.py": source})
    assert "return self.module.state_dict()" in after["train.py"]
