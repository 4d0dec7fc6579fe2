"""Parameters that are asked of a part of a model, which FSDP1 kept in a flat one of the whole."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from tests.helpers.migrating import migrate

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(2)])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

    def freeze_head(self):
        for p in self.head.parameters():
            p.requires_grad = False

    def freeze_all(self):
        for p in self.parameters():
            p.requires_grad = False


model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block})OWN)
"""
FLAT, OWN = HEAD.replace("OWN", ""), HEAD.replace("OWN", ", use_orig_params=True")
ASKED = {
    "in a group of an optimizer": (
        'torch.optim.AdamW([{"params": model.head.parameters()}, '
        '{"params": model.blocks.parameters()}])\n'
    ),
    "by another name": "head = model.head\ntorch.optim.AdamW(head.parameters())\n",
    "in a list": "params = list(model.head.parameters())\ntorch.optim.AdamW(params)\n",
    "of a unit's part": "torch.optim.AdamW(model.blocks[0].lin.parameters())\n",
    "of the module inside": "torch.optim.AdamW(model.module.head.parameters())\n",
    "by a function": (
        "def build(net):\n    return torch.optim.AdamW(net.head.parameters())\n\n\nbuild(model)\n"
    ),
    "frozen": "for p in model.head.parameters():\n    p.requires_grad = False\n",
    "frozen by name": ("for n, p in model.head.named_parameters():\n    p.requires_grad_(False)\n"),
    "frozen at once": "model.head.requires_grad_(False)\n",
    "frozen by a method": "model.freeze_head()\n",
    "frozen by a method of the module inside": "model.module.freeze_head()\n",
}


@pytest.mark.parametrize("use", ASKED.values(), ids=ASKED)
def test_what_fsdp1_did_not_give_is_marked(use: str) -> None:
    result, after = migrate({"example.py": FLAT + use})
    assert "fully_shard(" in after["example.py"]
    found = [d for d in result.decisions if d.code == "FSDP408"]
    assert [d.outcome for d in found] == [Outcome.REVIEW]
    assert "flat one of the" in after["example.py"]


@pytest.mark.parametrize("use", ASKED.values(), ids=ASKED)
def test_parameters_of_their_own_are_given_by_both(use: str) -> None:
    result, _ = migrate({"example.py": OWN + use})
    assert not [d for d in result.decisions if "part" in d.site.construct.name]


GIVEN_BY_BOTH = {
    "of the whole": "torch.optim.AdamW(model.parameters())\n",
    "of the module inside": "torch.optim.AdamW(model.module.parameters())\n",
    "of a list of units": "torch.optim.AdamW(model.blocks.parameters())\n",
    "of a unit": "for block in model.blocks:\n    torch.optim.AdamW(block.parameters())\n",
    "a device": "print(next(model.head.parameters()).device)\n",
    "a method that freezes everything": "model.freeze_all()\n",
    "a plain model": "net = Net()\ntorch.optim.AdamW(net.head.parameters())\nnet.freeze_head()\n",
    "within summon_full_params": (
        "with FSDP.summon_full_params(model):\n    for p in model.head.parameters():\n"
        "        p.requires_grad = False\n"
    ),
}


@pytest.mark.parametrize("use", GIVEN_BY_BOTH.values(), ids=GIVEN_BY_BOTH)
def test_what_both_give_needs_no_review(use: str) -> None:
    result, _ = migrate({"example.py": FLAT + use})
    assert not [d for d in result.decisions if "part" in d.site.construct.name]


def test_what_is_frozen_before_the_model_is_wrapped_is_frozen_in_both() -> None:
    before = FLAT.replace("model = FSDP(Net()", "net = Net()\nnet.freeze_head()\nmodel = FSDP(net")
    _, after = migrate({"example.py": before})
    assert "TODO" not in after["example.py"]


EITHER = """\
def main(net, args):
    model = net
    if args.mode == "ddp":
        model = DistributedDataParallel(model)
    elif args.mode == "fsdp":
        model = FSDP(model)
    if args.mode == "{mode}":
        first = [p for n, p in model.{part}named_parameters() if "head" in n]
        optimizer = torch.optim.AdamW([{{"params": first, "lr": 0.1}}])
"""


@pytest.mark.parametrize(
    ("mode", "part", "is_marked"),
    [("ddp", "", False), ("ddp", "head.", False), ("fsdp", "", False), ("fsdp", "head.", True)],
)
def test_another_branch_sharded_what_a_name_was_given(
    mode: str, part: str, is_marked: bool
) -> None:
    head = FLAT.rpartition("model = ")[0]
    head += "from torch.nn.parallel import DistributedDataParallel\n\n\n"
    result, _ = migrate({"example.py": head + EITHER.format(mode=mode, part=part)})
    found = [d for d in result.decisions if "part" in d.site.construct.name]
    assert bool(found) is is_marked
