"""Models that ``device_id`` may still have to move, before rank 0's weights are sent."""

from __future__ import annotations

import textwrap

import pytest

from tests.helpers.migrating import migrate

HEAD = """\
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def wrap(net, kind):
"""
WRAP = "net = FSDP(net, device_id=torch.cuda.current_device(), sync_module_states=True)"
MOVED = {
    "above": f"net.cuda()\n{WRAP}",
    "in the same branch": f"if kind:\n    net.cuda()\n    {WRAP}",
    "above the branch": f"net.cuda()\nif kind:\n    {WRAP}",
    "in the same case": f"match kind:\n    case 1:\n        net.cuda()\n        {WRAP}",
    "in both a with": f"with torch.enable_grad():\n    net.cuda()\n    {WRAP}",
}
NOT_MOVED = {
    "in the other branch": f"if kind:\n    net.cuda()\nelse:\n    {WRAP}",
    "in another case": (
        f"match kind:\n    case 1:\n        net.cuda()\n    case _:\n        {WRAP}"
    ),
    "where it failed": f"try:\n    print(kind)\nexcept ValueError:\n    net.cuda()\n{WRAP}",
    "below": f"{WRAP}\nnet.cuda()",
    "by a value, in one case of it": f"net = net.cuda() if kind else net\n{WRAP}",
}
SENT = "dist.broadcast(tensor.detach(), src=0)"


def _after(body: str) -> str:
    text = HEAD + textwrap.indent(body, "    ") + "\n    return net\n"
    return migrate({"example.py": text})[1]["example.py"]


@pytest.mark.parametrize("body", MOVED.values(), ids=MOVED)
def test_a_model_that_was_moved_is_sent_as_it_is(body: str) -> None:
    assert SENT in _after(body)


@pytest.mark.parametrize("body", NOT_MOVED.values(), ids=NOT_MOVED)
def test_one_that_device_id_moves_is_not(body: str) -> None:
    after = _after(body)
    assert "fully_shard(net)" in after
    assert SENT not in after
