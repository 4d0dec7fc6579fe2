"""Launchers of the user's own, and several machines."""

from __future__ import annotations

import shlex
import socket
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify

from .programs import judged
from .scripts import FSDP1, FSDP2

pytestmark = pytest.mark.train

SRUN = """
import os, subprocess, sys

count, command = int(sys.argv[2]), sys.argv[3:]
ranks = []
for rank in range(count):
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    names |= {"MASTER_ADDR": "localhost", "MASTER_PORT": os.environ["ANY_PORT"]}
    env = {**os.environ, **{name: str(value) for name, value in names.items()}}
    ranks.append(subprocess.Popen(command, env=env))
sys.exit(max(rank.wait() for rank in ranks))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port


def test_a_command_line_that_starts_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "srun.py").write_text(SRUN)
    launcher = shlex.join([sys.executable, str(tmp_path / "srun.py"), "-n", "2"])
    report = judged(
        "causal", launcher=launcher, twin=False, max_steps=2, env={"ANY_PORT": str(free_port())}
    )
    assert report.verdict is Verdict.SAME, text.render(report)
    assert report.endings["after"].launcher == "other"


def one_machine(number: int, endpoint: str, kept: Path) -> Report:
    """The verdict on one of two machines, each of which starts one rank."""
    torchrun = Path(sys.executable).with_name("torchrun")
    words = [str(torchrun), "--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1"]
    words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=meeting"]
    return judged("causal", launcher=shlex.join(words), keep=kept, twin=False, max_steps=2)


def test_two_machines_that_meet_through_torchrun(tmp_path: Path) -> None:
    machine = partial(one_machine, endpoint=f"localhost:{free_port()}", kept=tmp_path)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as machines:
        reports = list(machines.map(machine, range(2)))
    for report in reports:
        assert report.verdict is Verdict.SAME, text.render(report)
        assert "steps 1 to 2 of a program that went on, 2 ranks" in report.says
    assert (tmp_path / "verify-meeting").is_dir()


OWN = """\
import multiprocessing
import os
import sys

import torch
import torch.distributed as dist
from parallel import wrap


def train(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = wrap(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    start = multiprocessing.get_context(sys.argv[2])
    ranks = [start.Process(target=train, args=(n, sys.argv[1])) for n in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_program_that_starts_its_ranks_by_itself(method: str, tmp_path: Path) -> None:
    for side, parallel in (("before", FSDP1), ("after", FSDP2)):
        tree = tmp_path / side
        tree.mkdir()
        (tree / "train.py").write_text(OWN)
        (tree / "parallel.py").write_text(parallel)
    plan = Plan(
        before=tmp_path / "before",
        after=tmp_path / "after",
        script="train.py",
        args=(str(free_port()), method),
        twin=False,
        max_steps=2,
    )
    report = verify(plan)
    assert report.verdict is Verdict.SAME, text.render(report)
    assert report.endings["after"].launcher == "single"
    assert len(report.rows) == 2
