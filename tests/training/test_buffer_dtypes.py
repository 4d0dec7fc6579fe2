"""Buffers have the dtype that FSDP1 cast them to, whichever of several policies a run takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

low = MixedPrecision(torch.float16, torch.float32, torch.float16)
mixed = MixedPrecision(
    param_dtype=torch.float, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16
)
POLICY


class Net(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.linear = nn.Linear(dim, dim)
        self.register_buffer("table", torch.linspace(0.1, 3.3, dim))

    def forward(self, x):
        return self.linear(x * self.table.to(x.dtype))


def main(kind):
    policy = None
    if kind == "low":
        policy = low
    elif kind == "mixed":
        policy = mixed
    elif kind == "other":
        policy = other
    net = Net()
    model = FSDP(MODEL, mixed_precision=policy, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        inputs = torch.randn(2, 16)
        loss = model(inputs).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(kind, model.table.dtype)
        print("loss", loss.item())


dist.init_process_group("gloo")
torch.manual_seed(0)
for kind in ("low", "mixed", "other", "none"):
    main(kind)
dist.destroy_process_group()
"""
POLICIES = {
    "a third": "other = MixedPrecision(torch.bfloat16, torch.float32, torch.bfloat16)",
    "one that leaves them": "other = MixedPrecision(param_dtype=torch.bfloat16)",
}
MODELS = {"itself": "net", "a copy": "copy.deepcopy(net)"}
TOLD_BY_NOTHING = {
    "the same parameters": "other = MixedPrecision(torch.float16, torch.float32, torch.float32)",
    "no dtype of parameters": "other = MixedPrecision(buffer_dtype=torch.float32)",
    "a dtype from outside": "other = MixedPrecision(config.dtype, torch.half, torch.float32)",
}


def program(policy: str, model: str = "net") -> str:
    return PROGRAM.replace("POLICY", policy).replace("MODEL", model)


@pytest.mark.train
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
@pytest.mark.parametrize("policy", POLICIES.values(), ids=list(POLICIES))
def test_buffers_follow_the_policy(
    launcher: Launcher, tmp_path: Path, policy: str, model: str
) -> None:
    pair = written({"train.py": program(policy, model).encode()}, tmp_path)
    assert "fully_shard(" in pair.after.read_text()
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert "mixed torch.bfloat16" in before.output[0]
    assert "low torch.float16" in before.output[0]
    assert [line for line in after.output[0].splitlines() if "torch." in line] == [
        line for line in before.output[0].splitlines() if "torch." in line
    ]
    assert compare(before, after) == 2 * 16


@pytest.mark.parametrize("policy", TOLD_BY_NOTHING.values(), ids=list(TOLD_BY_NOTHING))
def test_a_dtype_that_no_field_tells_is_asked_at_run_time(policy: str) -> None:
    _, after = migrate({"train.py": program(policy)})
    assert "buffer_dtypes" not in after["train.py"]
    assert "buffer_dtype=torch.bfloat16" in after["train.py"]
