"""A model, or something that is none: ``(m or None)._handle``, ``self.heads.values()``."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

FREED = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

flag = None


def free(net):
    model = FSDP(net)
    for m in model.modules():
        if isinstance(m, FSDP):
            {unit}._handle.reshard(True)
"""


@pytest.mark.parametrize("unit", ["m", "(m or flag)", "(m or None)", "(m if m else None)"])
def test_a_unit_or_nothing_is_freed(unit: str) -> None:
    _, files = migrate({"free.py": FREED.format(unit=unit)})
    assert f"{unit}.reshard()" in files["free.py"]


HEADS = """\
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
import types


class Net(nn.Module):
    def __init__(self, names):
        super().__init__()
        made = {{n: vars(types.SimpleNamespace(it={made}(nn.Linear(4, 1))))["it"] for n in names}}
        self.heads = nn.ModuleDict(made)
        self.body = FSDP(nn.Linear(4, 4))

    def clip(self, limit):
        for head in self.heads.values():
            head.clip_grad_norm_(limit)
"""


def test_a_unit_of_a_dictionary_of_modules_is_marked() -> None:
    _, files = migrate({"net.py": HEADS.format(made="FSDP")})
    assert "TODO(fsdp-migrate FSDP401)" in files["net.py"]


OPTIMIZERS = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def save({states}, path):
    for number, each in enumerate({states}):
        torch.save(each.state_dict(), path)


def train(net, make):
    model = FSDP(net)
    save([make(model)], "a")
"""


@pytest.mark.parametrize(("states", "marked"), [("optimizers", False), ("parts", True)])
def test_how_a_model_gets_into_a_list_of_optimizers_is_no_question(
    states: str, marked: bool
) -> None:
    result, _ = migrate({"save.py": OPTIMIZERS.format(states=states)})
    asked = [d for d in result.decisions if d.site.construct.last == "state_dict"]
    asked += [n for n in result.not_followed if "gets into" in n.why]  # type: ignore[misc]
    assert bool(asked) is marked
