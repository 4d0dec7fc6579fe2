from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.commandline import ROOT, Command

MOMENTS = int(os.environ.get("FSDP_MIGRATE_KILLS", "6"))
FILES = 40
WRAPS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\n"
SHARDS = "from torch.distributed.fsdp import fully_shard\n\nmodel = fully_shard(net)\n"
# The command in a child that has loaded all it needs, so that moments fall into its work.
CHILD = """
import sys
from fsdp_migrate.cli import parser
from fsdp_migrate.migration import engine
from fsdp_migrate.rewriting import apply, write
print("ready", flush=True)
sys.exit(parser.run(["rewrite", ".", "-q", "--jobs", "1"]))
"""


def start(here: Path) -> subprocess.Popen[bytes]:
    """The command, which is about to begin."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=here,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture
def project(here: Path) -> Path:
    for number in range(FILES):
        (here / f"m{number}.py").write_text(WRAPS)
    return here


@pytest.mark.timeout(60 + 20 * MOMENTS)
def test_at_random_moments(project: Path, run: Command) -> None:
    process = start(project)
    begun = time.monotonic()
    assert process.wait() == 0
    whole = time.monotonic() - begun
    run("undo")
    drawn = random.Random(1)
    for _ in range(MOMENTS):
        # Half of the moments fall into the last third, in which files are written.
        share = drawn.random() if drawn.random() < 0.5 else 0.66 + 0.34 * drawn.random()
        process = start(project)
        time.sleep(share * whole * 0.9)
        process.send_signal(signal.SIGKILL)
        process.wait()
        held = {path: path.read_text() for path in project.glob("m*.py")}
        assert len(held) == FILES
        assert set(held.values()) <= {WRAPS, SHARDS}
        run("undo")  # there may be nothing to undo
        assert {path.read_text() for path in project.glob("m*.py")} == {WRAPS}
        assert not list(project.glob(".fsdp-migrate*"))
    assert run("rewrite", ".").code == 0
    assert {path.read_text() for path in project.glob("m*.py")} == {SHARDS}
