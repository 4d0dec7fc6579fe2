"""Programs that only know CUDA, run where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify
from tests.helpers.migrating import migrate, migrated

from .programs import PROGRAMS, Replaced, altered, failed

pytestmark = pytest.mark.train


def simulated(program: str, folder: Path, *replaced: Replaced, steps: int = 5) -> Report:
    """The verdict on a program and what the tool makes of it, with statements replaced."""
    made = folder / "migrated"
    made.mkdir()
    for name, source in migrated(PROGRAMS / program / "before").items():
        (made / name).write_text(source)
    return verify(
        Plan(
            before=PROGRAMS / program / "before",
            after=altered(made, folder / "after", replaced),
            script="train.py",
            max_steps=steps,
            timeout=60.0,
        )
    )


@pytest.mark.parametrize("program", ["nccl", "amp", "streams"])
def test_a_program_for_gpus_is_judged_and_the_verdict_says_how(
    program: str, tmp_path: Path
) -> None:
    report = simulated(program, tmp_path)
    shown = text.render(report)
    assert report.verdict is Verdict.SAME, shown
    assert report.simulated
    assert report.endings["before"].simulated
    assert "PASS  same training, in a CPU simulation of CUDA" in shown
    assert any("GPU memory and speed" in limit for limit in report.limits)
    assert report.to_dict()["simulated"] is True


def test_a_defect_is_named_in_the_simulation_as_well(tmp_path: Path) -> None:
    report = simulated(
        "nccl", tmp_path, ("optimizer = torch.optim.AdamW(", "optimizer = torch.optim.Adam(")
    )
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "settings")


CUDA = """
import copy
import pickle
import threading
import torch
import torch.distributed as dist
from torch import nn

assert torch.cuda.is_available() and torch.cuda.device_count() == 2
dist.init_process_group("nccl")
rank = dist.get_rank()
assert torch.cuda.current_device() == rank

device = torch.device(1)
assert isinstance(device, torch.device) and str(device) == "cuda:1"
assert isinstance(None, torch.device | None)
assert torch.device("cuda", rank).index == rank

for x in (
    torch.zeros(3, device="cuda"),
    torch.tensor([1, 2, 3], device=0),
    torch.ones(3).to(rank),
    torch.ones(3).to("cuda:1", torch.float64, non_blocking=True),
    torch.ones(3).cuda(),
    torch.ones(3).pin_memory(),
    torch.rand(3, generator=torch.Generator("cuda"), device="cuda"),
    nn.Linear(3, 3).cuda().weight,
    nn.Linear(3, 3).to(1).weight,
    nn.Linear(3, 3, device="meta").to_empty(device="cuda").weight,
):
    assert x.device.type == "cpu", x

part = torch.arange(12).reshape(3, 4)[:, 1:]
for moved in (part.to("cuda"), part.to(rank), part.to(device=rank), part.cuda()):
    assert moved.view(9).sum() == part.sum()
turned = torch.ones(3, 4).t()
assert turned.to("cuda").stride() == turned.stride()
assert part.to("cpu") is part and part.to(device="cpu") is part and part.to(torch.int64) is part

torch.cpu.current_stream().synchronize()  # as FSDP1 does where gradients are offloaded

with torch.device("cuda"):
    assert torch.empty(2).device.type == "cpu"

seen = []
thread = threading.Thread(target=lambda: seen.append(torch.ones(2, device="cuda")))
thread.start()
thread.join()
assert len(seen) == 1

mean = torch.tensor([float(rank)], device="cuda")
dist.all_reduce(mean, op=dist.ReduceOp.AVG)
assert mean.item() == 0.5

assert isinstance(torch.Generator("cuda"), torch.Generator)
assert copy.deepcopy(device) == pickle.loads(pickle.dumps(device)) == device
torch.save({"x": torch.ones(2)}, f"x{rank}.pt")
for place in ("cuda", 0, {"cpu": "cuda:0"}, None, lambda storage, where: storage):
    assert torch.load(f"x{rank}.pt", map_location=place)["x"].sum() == 2

with torch.autocast("cuda"):
    product = torch.ones(2, 2) @ torch.ones(2, 2)
assert product.dtype is torch.float16

model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_devices_of_every_spelling_are_the_cpu(tmp_path: Path) -> None:
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(CUDA)
    report = verify(
        Plan(
            before=tmp_path / "before",
            after=tmp_path / "after",
            script="train.py",
            device="simulate",
            twin=False,
        )
    )
    ending = report.endings["before"]
    assert ending.end.value == "finished", ending.full
    assert len(report.rows) == 3


def test_a_machine_has_as_many_devices_for_fsdp1_as_for_the_program(tmp_path: Path) -> None:
    before = altered(
        PROGRAMS / "nccl" / "before",
        tmp_path / "before",
        [
            (
                "use_orig_params=True,",
                "use_orig_params=True, sharding_strategy=ShardingStrategy.HYBRID_SHARD,",
            ),
            ("FullyShardedDataParallel, ", "FullyShardedDataParallel, ShardingStrategy, "),
        ],
    )
    after = tmp_path / "after"
    after.mkdir()
    for name, source in migrated(before).items():
        (after / name).write_text(source)
    report = verify(Plan(before=before, after=after, script="train.py", max_steps=3))
    assert report.verdict is Verdict.SAME, text.render(report)


@pytest.mark.parametrize(("built", "told"), [('"13.0"', "13.0"), ("None", "12.4")])
def test_a_torch_for_cuda_says_what_it_was_built_for(built: str, told: str) -> None:
    """Extensions, torchvision among them, refuse a torch of another version than theirs."""
    program = (
        f"import torch\ntorch.version.cuda = {built}\n"
        "from fsdp_migrate.verify.simulate import devices\ndevices.install(1)\n"
        "print(torch.version.cuda)"
    )
    run = [sys.executable, "-c", program]
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    assert done.stdout.strip() == told, done.stderr


OWN_RANKS = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def work(rank, world):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "29655"
    dist.init_process_group("nccl", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    assert torch.cuda.device_count() == torch.accelerator.device_count() == world == 2
    torch.manual_seed(0)
    model = FSDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(3):
        model(torch.randn(4, 8, device="cuda")).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(work, args=(count,), nprocs=count)
"""


def test_a_program_that_makes_its_own_ranks_has_a_device_for_each(tmp_path: Path) -> None:
    for name, text_of in (
        ("before", OWN_RANKS),
        ("after", migrate({"train.py": OWN_RANKS})[1]["train.py"]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text_of)
    report = verify(
        Plan(
            before=tmp_path / "before",
            after=tmp_path / "after",
            script="train.py",
            max_steps=2,
            device="simulate",
            timeout=60.0,
        )
    )
    assert report.verdict is Verdict.SAME, text.render(report)
    assert "2 ranks" in text.render(report)
