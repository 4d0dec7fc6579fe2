"""``.data`` of a parameter in a part that has a name of its own: assigning to it does nothing to a
sharded parameter, so that it is copied into."""

from __future__ import annotations

import pytest

from tests.helpers.migrating import migrate

PROGRAM = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def train(model, other, plain, optimizer, batch):
    model = FSDP(model, use_orig_params=True)
    with torch.no_grad():
{code}
    model(batch).sum().backward()
    return model
"""


@pytest.mark.parametrize(
    ("names", "part"),
    [
        ("for b in model.blocks:", "b.fc.weight"),
        ("for i, b in enumerate(model.blocks):", "b.fc.weight"),
        ("for b in reversed(list(model.blocks)):", "b.fc.weight"),
        ("for p, b in zip(other.blocks, model.blocks):", "b.weight"),
        ("for b in [model.head]:", "model.head.weight"),
        ("for _ in range(2):\n            head = model.head", "head.weight"),
        ("for _ in range(2):\n            b = model.blocks[0]", "b.fc.weight"),
    ],
)
def test_data_of_a_part_is_copied_into(names: str, part: str) -> None:
    code = f"        {names}\n            {part}.data = {part}.data * 0.5"
    _, files = migrate({"train.py": PROGRAM.format(code=code)})
    assert f"{part}.data.copy_({part}.data * 0.5)" in files["train.py"]


@pytest.mark.parametrize(
    ("names", "part"),
    [
        ("for b in plain.blocks:", "b.fc.weight"),
        ("for b in plain.blocks:", "b.tensor"),
        ("for p, b in zip(other.blocks, model.blocks):", "p.weight"),
        ("for b in [plain.head]:", "b.weight"),
        ("for _ in range(2):\n            head = plain.head", "head.weight"),
    ],
)
def test_data_of_other_models_stays(names: str, part: str) -> None:
    code = f"        {names}\n            {part}.data = {part}.data * 0.5"
    _, files = migrate({"train.py": PROGRAM.format(code=code)})
    assert f"{part}.data = {part}.data * 0.5" in files["train.py"]
    assert "FSDP408" not in files["train.py"]


@pytest.mark.parametrize("either", ["sharded if flag else plain", "flag and sharded or plain"])
def test_what_a_test_has_told_to_be_plain_is_no_part(either: str) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def train(net, plain, flag):\n    sharded = FSDP(net)\n"
        f"    model = {either}\n"
        "    if isinstance(model, FSDP):\n        model.clip_grad_norm_(1.0)\n"
        "    else:\n        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)\n"
    )
    _, files = migrate({"train.py": source})
    plain = files["train.py"].rpartition("    else:\n")[2]
    assert plain == "        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)\n"
