"""Launchers of the user's own, and several machines."""

from __future__ import annotations

import shlex
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict

from .programs import judged

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


def test_two_machines_that_meet_through_torchrun(tmp_path: Path) -> None:
    torchrun = Path(sys.executable).with_name("torchrun")
    endpoint = f"localhost:{free_port()}"

    def machine(number: int) -> Report:
        words = [str(torchrun), "--nnodes=2", f"--node-rank={number}", "--nproc-per-node=1"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=meeting"]
        launcher = shlex.join(words)
        return judged("causal", launcher=launcher, keep=tmp_path, twin=False, max_steps=2)

    with ThreadPoolExecutor(2) as machines:
        reports = list(machines.map(machine, range(2)))
    for report in reports:
        assert report.verdict is Verdict.SAME, text.render(report)
        assert "2 steps, 2 ranks" in report.says
    assert (tmp_path / "verify-meeting").is_dir()
