"""FSDP1's static methods, asked of a class that is derived from it."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapper(FSDP):
    def __init__(self, model):
        super().__init__(model, use_orig_params=True)
{own}

class Another(Wrapper):
    pass


model = {cls}(nn.Linear(8, 8))
"""
FULL = "StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True, offload_to_cpu=True)"
ASKED = {
    "a context": f"with {{cls}}.state_dict_type(model, {FULL}):\n    state = model.state_dict()\n",
    "a setting": f"{{cls}}.set_state_dict_type(model, {FULL})\nstate = model.state_dict()\n",
    "units": "units = {cls}.fsdp_modules(model)\n",
    "an optimizer": "state = {cls}.full_optim_state_dict(model, optimizer)\n",
}


@pytest.mark.parametrize("cls", ["Wrapper", "Another"])
@pytest.mark.parametrize("body", ASKED.values(), ids=ASKED)
def test_it_is_asked_as_of_fsdp1(body: str, cls: str) -> None:
    body = body.format(cls=cls)
    derived = HEAD.format(own="", cls=cls) + body
    _, after = migrate({"train.py": derived})
    _, plain = migrate({"train.py": derived.replace(f"{cls}.", "FSDP.")})
    assert after["train.py"] == plain["train.py"]
    assert body not in after["train.py"]


OWN = """
    @staticmethod
    def fsdp_modules(model):
        return []
"""


def test_a_method_of_its_own_is_left() -> None:
    source = HEAD.format(own=OWN, cls="Wrapper") + "units = Wrapper.fsdp_modules(model)\n"
    _, after = migrate({"train.py": source})
    assert "units = Wrapper.fsdp_modules(model)\n" in after["train.py"]


def test_a_class_of_something_else_is_left() -> None:
    source = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Wrapper(nn.Module):
    pass


model = FSDP(nn.Linear(8, 8))
units = Wrapper.fsdp_modules(model)
"""
    _, after = migrate({"train.py": source})
    assert "units = Wrapper.fsdp_modules(model)\n" in after["train.py"]
