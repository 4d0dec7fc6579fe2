"""The store of the ranks outlives whichever of them ends first, as torchrun's does."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.launch.start import warm_server

pytestmark = pytest.mark.train

LEAVES_EARLY = """
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
store = dist.distributed_c10d._get_default_store()
if rank == FIRST:
    store.wait(["connected"])  # gloo gives up where a peer leaves while it still connects
    os._exit(0)
store.set("connected", "")
time.sleep(0.5)
dist.new_group([rank], use_local_synchronization=True)
print("done")
"""


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_may_leave_before_the_other_has_set_up_its_groups(
    first: int, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LEAVES_EARLY.replace("FIRST", str(first)))
    with warm_server(sys.executable, tmp_path) as server:
        for number in range(2):  # two runs do not see each other's keys
            logs = tmp_path / f"logs{number}"
            run = server.run([str(script)], env=dict(os.environ), cwd=tmp_path, world=2, logs=logs)
            run.wait(60)
            assert run.poll() == 0, (logs / str(1 - first) / "stderr.log").read_text()
            assert (logs / str(1 - first) / "stdout.log").read_text() == "done\n"
