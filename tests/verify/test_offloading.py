"""Parameters that FSDP1 offloads to the CPU: it trains in the simulation as it does on a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from fsdp_migrate.verify.launch.start import warm_server
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify
from tests.helpers.migrating import migrated
from tests.verify.programs import altered, failed

HEAD = """\
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, ShardingStrategy

dist.init_process_group("cpu:gloo,cuda:nccl")
torch.manual_seed(0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.scale * x


def wrap(model):
    return FSDP(
        model,
        cpu_offload=CPUOffload(offload_params=True),
        sharding_strategy=ShardingStrategy.{strategy},
        use_orig_params={original},
        device_id=torch.cuda.current_device(),
    )


model = wrap(
    nn.Sequential(wrap(nn.Linear(8, 16)), nn.Tanh(), wrap(Scaled()), nn.Linear(16, 4))
)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
torch.manual_seed(dist.get_rank())
for step in range(6):
"""
AT_ONCE = """\
    loss = model(torch.randn(4, 8, device="cuda")).square().mean()
    loss.backward()
"""
ACCUMULATED = """\
    for micro in range(3):
        with nullcontext() if micro == 2 else model.no_sync():
            loss = model(torch.randn(4, 8, device="cuda")).square().mean() / 3
            loss.backward()
"""
REDUCED_EACH_TIME = """\
    for micro in range(3):
        loss = model(torch.randn(4, 8, device="cuda")).square().mean() / 3
        loss.backward()
"""
STEP = """\
    {clip}optimizer.step()
    optimizer.zero_grad({zero})
"""
CLIP = "model.clip_grad_norm_(0.1)\n    "


@dataclass(frozen=True)
class Program:
    """A program for GPUs whose parameters are offloaded, the scale in a unit of its own: its parts
    are as large as the whole, which is how FSDP1 on a CPU tells a gradient of ``no_sync``."""

    micro: str = AT_ONCE
    strategy: str = "FULL_SHARD"
    original: bool = True
    optimizer: str = "AdamW"
    clip: str = CLIP
    zero: str = ""

    def __str__(self) -> str:
        names = {AT_ONCE: "at once", ACCUMULATED: "accumulated", CLIP: "clipped", "": "-"}
        return ", ".join(names.get(each, str(each)) for each in asdict(self).values())

    def text(self) -> str:
        text: str = (HEAD + self.micro + STEP).format(**asdict(self))
        return text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmServer]:
    with warm_server(sys.executable, tmp_path_factory.mktemp("server")) as server:
        yield server


def judged(
    program: Program, folder: Path, server: WarmServer, *replaced: tuple[str, str]
) -> Report:
    """The verdict on a program and what the tool makes of it, with statements replaced."""
    before, made = folder / "before", folder / "made"
    before.mkdir()
    made.mkdir()
    (before / "train.py").write_text(program.text())
    (made / "train.py").write_text(migrated(before)["train.py"])
    after = altered(made, folder / "after", replaced)
    plan = Plan(before=before, after=after, script="train.py", timeout=60.0)
    return verify(plan, server=server)


RIGHT = [
    Program(),
    Program(clip="", optimizer="SGD"),
    Program(original=False),
    Program(strategy="SHARD_GRAD_OP", optimizer="SGD"),
    Program(strategy="NO_SHARD"),
    Program(zero="set_to_none=False"),
    Program(ACCUMULATED),
    Program(ACCUMULATED, optimizer="SGD", clip=""),
    Program(ACCUMULATED, original=False),
    Program(ACCUMULATED, strategy="SHARD_GRAD_OP"),
    Program(ACCUMULATED, strategy="NO_SHARD", optimizer="SGD"),
    Program(ACCUMULATED, zero="set_to_none=False"),
]


@pytest.mark.parametrize("program", RIGHT, ids=str)
def test_what_is_migrated_rightly_passes(
    program: Program, tmp_path: Path, server: WarmServer
) -> None:
    report = judged(program, tmp_path, server)
    assert report.verdict is Verdict.SAME, text.render(report)


BACKWARD = "loss.backward()\n"
DOUBLED = BACKWARD + "    for p in model.parameters():\n        p.grad.mul_(2)\n"
DEFECTS = [
    (Program(), (BACKWARD, DOUBLED), "clipping"),
    (Program(optimizer="SGD", clip=""), (BACKWARD, DOUBLED), "gradient"),
    (Program(), ("    optimizer.zero_grad()\n", ""), "trajectory"),
    (Program(ACCUMULATED, optimizer="SGD", clip=""), (" / 3", ""), "first-loss"),
    (Program(ACCUMULATED), ("    optimizer.zero_grad()\n", ""), "trajectory"),
]


@pytest.mark.parametrize(("program", "replaced", "cause"), DEFECTS, ids=str)
def test_a_defect_is_named(
    program: Program, replaced: tuple[str, str], cause: str, tmp_path: Path, server: WarmServer
) -> None:
    report = judged(program, tmp_path, server, replaced)
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, cause), text.render(report)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
@pytest.mark.parametrize("original", [True, False])
def test_only_the_last_of_several_reduced_gradients_counts(
    strategy: str, original: bool, tmp_path: Path, server: WarmServer
) -> None:
    """As torch says of ``CPUOffload`` among the limitations of FSDP1; FSDP2 adds them up."""
    program = Program(REDUCED_EACH_TIME, strategy, original)
    report = judged(program, tmp_path, server)
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "clipping"), text.render(report)
    again = tmp_path / "again"
    again.mkdir()
    alone = "        optimizer.zero_grad()\n        loss.backward()\n"
    report = judged(program, again, server, ("        loss.backward()\n", alone))
    assert report.verdict is Verdict.SAME, text.render(report)
