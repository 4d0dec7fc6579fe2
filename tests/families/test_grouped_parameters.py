"""Parameters in groups that a loop builds, and single ones that functions are given."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

TOP = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.width = torch.zeros(4)

    def own(self):
        return size(self.head.weight)


def size(p):
    return p.numel()


def handed(p):
    return size(p)


net = Net()
model = FSDP(net, use_orig_params=True)
plain = nn.Linear(4, 4)
groups, decay, rest = [], [], []
"""
EACH = "for n, p in model.named_parameters():\n    {}\n"
GROUPS = {
    "an item": "groups = [[], []]\n" + EACH.format("groups[n in 'ab'].append(p)"),
    "one of two lists": EACH.format("(decay if p.ndim > 1 else rest).append(p)")
    + "groups = [decay]\n",
    "groups with names": "for part in model.module:\n"
    "    groups.append({'params': part.parameters()})\n",
    "items with names": "groups = [{'params': []}]\n"
    + EACH.format("groups[0]['params'].append(p)"),
    "items by keys": "found = {}\n"
    + EACH.format("found.setdefault(n[:1], {'params': []})['params'].append(p)")
    + "for g in found.values():\n    pass\n",
}
GOING = {
    "a list": "for g in groups:\n    print(sum(p.numel() for p in g))\n",
    "a member": "for g in groups:\n    print(sum(p.numel() for p in g['params']))\n",
}


def _counted(text: str, line: str) -> bool:
    result, _ = migrate({"train.py": text})
    number = text[: text.index(line)].count("\n") + 1
    return any(
        d.code == "FSDP408" and d.site.statement.lineno in {number, number - 1}
        for d in result.decisions
    )


@pytest.mark.parametrize("made", GROUPS)
def test_groups_that_a_loop_builds(made: str) -> None:
    going = GOING["a member" if "params" in GROUPS[made] else "a list"]
    going = going.replace("groups", "found.values()") if "found" in GROUPS[made] else going
    text = TOP + GROUPS[made] + going
    assert _counted(text, "print(sum")
    assert not _counted(
        text.replace("model.named_", "plain.named_").replace("model.module", "[]"), "print(sum"
    )


def test_groups_of_others_are_no_parameters() -> None:
    text = TOP + "for n, p in model.named_parameters():\n    groups.append({'params': [1]})\n"
    assert not _counted(text + GOING["a member"], "print(sum")


@pytest.mark.parametrize(
    ("asked", "is_said"),
    [
        ("size(model.head.weight)", True),
        ("size(p=model.head.bias.grad)", True),
        ("size(net.head.weight)", True),
        ("handed(model.head.weight.data)", True),
        ("size(plain.weight)", False),
        ("size(model.width)", False),
        ("size(torch.zeros(4))", False),
        ("model.own()", False),
        ("FSDP.summon_full_params(model).__enter__()", False),
    ],
)
def test_a_function_is_given_one_parameter(asked: str, is_said: bool) -> None:
    assert _counted(f"{TOP}print({asked})\n", "p.numel()") is is_said


KEPT = """\
kept, listed = {{}}, []
for name, child in {owner}.named_modules():
    if hasattr(child, "weight"):
        {stored}
{asked}
"""


@pytest.mark.parametrize(
    ("owner", "stored", "is_said"),
    [
        ("model", "kept[name] = child.weight", True),
        ("model", "kept[name] = child.weight.grad", True),
        ("model", "kept[name] = child.bias.detach().clone()", True),
        ("plain", "kept[name] = child.weight", False),
        ("model", "kept[name] = child.training", False),
        ("model", "kept[name] = torch.zeros(4)", False),
    ],
)
def test_a_dictionary_that_parts_give_their_parameters(
    owner: str, stored: str, is_said: bool
) -> None:
    asked = "print(sum(w.numel() for w in kept.values()))"
    assert _counted(TOP + KEPT.format(owner=owner, stored=stored, asked=asked), asked) is is_said


@pytest.mark.parametrize(
    ("listed", "is_said"),
    [
        ("[model.head.weight, model.body.weight]", True),
        ("(net.head.weight.grad,)", True),
        ("[plain.weight, plain.bias]", False),
        ("[model.width]", False),
    ],
)
def test_a_list_of_single_parameters(listed: str, is_said: bool) -> None:
    asked = f"print(sum(w.numel() for w in {listed}))"
    assert _counted(TOP + asked + "\n", asked) is is_said
