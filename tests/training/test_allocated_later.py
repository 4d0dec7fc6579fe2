"""Models on the meta device whose weights the program sets after sharding."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.migrating import migrate
from tests.training.programs import Launcher, compare, written

PROGRAM = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        return x + self.scale * self.linear(x).tanh()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.device("meta"):
            self.blocks = nn.ModuleList([Block(), Block()])
        self.adapter = ADAPTER
        self.head = nn.Linear(8, 2, device="meta")

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(self.adapter(x))


def init_fn(module):
    return module.to_empty(device=torch.device("cpu"), recurse=False)


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = Net()
    model = FSDP(
        net,
        auto_wrap_policy=ModuleWrapPolicy({Block, nn.Sequential}),
        device_id=torch.device("cpu"),
        param_init_fn=init_fn,
        use_orig_params=True,MORE
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "adapter" not in name:
                parameter.fill_(0.03 * len(name.replace("_fsdp_wrapped_module.", "")))
        for buffer in model.buffers():
            buffer.fill_(0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(6):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print("loss", loss.item(), flush=True)
    dist.destroy_process_group()


main()
"""
ADAPTERS = {
    "on the meta device": "nn.Identity()",
    "a part that has its weights": "nn.Sequential(nn.Linear(8, 8))",
}


def program(adapter: str = "nn.Identity()", more: str = "") -> dict[str, str]:
    return {"train.py": PROGRAM.replace("ADAPTER", adapter).replace("MORE", more)}


@pytest.mark.train
@pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=list(ADAPTERS))
def test_what_is_on_the_meta_device_is_allocated_after_sharding(
    launcher: Launcher, tmp_path: Path, adapter: str
) -> None:
    pair = written({n: t.encode() for n, t in program(adapter).items()}, tmp_path)
    text = pair.after.read_text()
    assert "fully_shard(model" in text or "fully_shard(net" in text
    assert "fsdp2_support" not in text
    before, after = launcher.script(pair.before), launcher.script(pair.after)
    assert compare(before, after) == 2 * 6


def test_parameters_that_stay_on_the_cpu_are_allocated_there() -> None:
    more = "\n        cpu_offload=CPUOffload(offload_params=True),"
    text = program(more=more)["train.py"].replace('torch.device("cpu")', "torch.device('cuda', 0)")
    _, after = migrate({"train.py": text})
    assert '.to_empty(device="cpu", recurse=False)' in after["train.py"]
    assert 'buffer.data = buffer.to("cuda")' in after["train.py"]


@pytest.mark.parametrize(
    "init",
    ["init_fn if config.load else None", "None if dist.get_rank() else init_fn"],
)
def test_weights_that_may_be_drawn_are_drawn_at_run_time(init: str) -> None:
    text = program()["train.py"].replace("=init_fn", f"={init}")
    _, after = migrate({"train.py": text})
    assert "shard(" in after["train.py"]
    assert "fully_shard" not in after["train.py"]
