"""Ways in which FSDP905 to FSDP910 are met, and what is none of them."""

from __future__ import annotations

import pytest

from tests.helpers.hazards import codes

HEAD = """\
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4))
        self.head = nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4), persistent=False)

    def forward(self, x):
        return self.head(self.body(x)) * self.table


def is_main_process():
    return dist.get_rank() == 0


def main(batch, path, restore):
    model = Net()
    BODY
"""
MADE = 'torch.save({"model": get_model_state_dict(model)}, path)'
FOUND = {
    "only the body, in a variable": (
        "FSDP905",
        "body = model.body\n    fully_shard(body)\n"
        "    return torch.optim.Adam(model.parameters(), lr=0.1)",
    ),
    "a list of what is ignored": (
        "FSDP906",
        "fully_shard(model, ignored_params={*model.head.parameters()})\n"
        "    return torch.optim.Adam(model.parameters(), lr=0.1)",
    ),
    "the model is allocated above fully_shard": (
        "FSDP907",
        'model.to_empty(device="cpu")\n    fully_shard(model)\n    return model(batch)',
    ),
    "a part's parameters": (
        "FSDP908",
        "fully_shard(model)\n    for p in model.head.parameters():\n        p.data = p.data + 1",
    ),
    "a variable of two loops": (
        "FSDP908",
        "fully_shard(model)\n    for p in restore(model):\n        print(p)\n"
        "    for p in model.parameters():\n        p.data = p.data + 1",
    ),
    "under a condition": (
        "FSDP908",
        "fully_shard(model)\n    if batch.any():\n        model.head.bias.data = torch.ones(4)",
    ),
    "a function tells the rank": (
        "FSDP909",
        f"fully_shard(model)\n    if is_main_process():\n        {MADE}",
    ),
    "and something else": (
        "FSDP909",
        f"fully_shard(model)\n    if path and dist.get_rank() == 0:\n        {MADE}",
    ),
    "an empty dictionary and a reader": (
        "FSDP910",
        "fully_shard(model)\n    state = {}\n"
        "    dcp.load(state, storage_reader=dcp.FileSystemReader(path))\n    restore(state)",
    ),
}
KEPT = {
    "a unit for each part": (
        "fully_shard(model.body)\n    fully_shard(model.head)\n"
        "    return torch.optim.Adam(model.parameters(), lr=0.1)"
    ),
    "what is sharded is not known": (
        "fully_shard(restore(model))\n    return torch.optim.Adam(model.parameters(), lr=0.1)"
    ),
    "parts by chosen names": (
        "for name, part in model.named_children():\n        fully_shard(part)\n"
        "    return torch.optim.Adam(model.parameters(), lr=0.1)"
    ),
    "some of the ignored are chosen": (
        "some = {p for p in model.head.parameters() if p.ndim == 1}\n"
        "    fully_shard(model, ignored_params=some)\n"
        "    return torch.optim.Adam(model.parameters(), lr=0.1)"
    ),
    "the table is written anew": (
        'fully_shard(model)\n    model.to_empty(device="cpu")\n    restore(model)\n'
        "    model.table = torch.ones(4)"
    ),
    "nothing is allocated": ("fully_shard(model)\n    restore(model)\n    return model(batch)"),
    "a variable that is bound anew in the loop": (
        "fully_shard(model)\n    for p in model.parameters():\n        p = restore(p)\n"
        "        p.data = p.data + 1"
    ),
    "data of a tensor": "fully_shard(model)\n    batch.data = batch.data + 1",
    "data of a gradient": (
        "fully_shard(model)\n    for p in model.parameters():\n        p.grad.data = p.grad + 1"
    ),
    "data of a copy": (
        "import copy\n    other = copy.deepcopy(model)\n    fully_shard(model)\n"
        "    for p in other.parameters():\n        p.data = p.data + 1"
    ),
    "a state that is no model's": (
        'fully_shard(model)\n    if is_main_process():\n        torch.save({"step": batch}, path)'
    ),
    "a path of each rank": (
        "fully_shard(model)\n    rank = dist.get_rank()\n    name = f'{path}/{rank}.pt'\n"
        "    torch.save(model.state_dict(), name)"
    ),
    "the state is put together": (
        "fully_shard(model)\n    state = model.state_dict()\n    state = restore(state)\n"
        "    if is_main_process():\n        torch.save(state, path)"
    ),
    "all ranks have the whole model": (
        "fully_shard(model)\n    model.unshard()\n    if is_main_process():\n"
        "        torch.save(model.state_dict(), path)"
    ),
    "a dictionary of the model's": (
        "fully_shard(model)\n    dcp.load(get_model_state_dict(model), checkpoint_id=path)"
    ),
    "torch's other load": "fully_shard(model)\n    torch.load(path, {})",
}


def program(body: str) -> str:
    return HEAD.replace("BODY", body)


@pytest.mark.parametrize("name", FOUND)
def test_it_is_found(name: str) -> None:
    code, body = FOUND[name]
    assert codes(program(body)) == [code]


@pytest.mark.parametrize("name", KEPT)
def test_others_are_none(name: str) -> None:
    assert codes(program(KEPT[name])) == []
