"""Start the ranks of training jobs by forking a process that has imported torch already.

Importing torch takes seconds and a toy training a fraction of one. One request is one line of JSON
on standard input, one answer one line of JSON on standard output; see :mod:`.programs`.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.inject import store


def work(job: dict[str, Any]) -> Callable[[], object]:
    """What every rank of a job does: run a script, or call a function of a module."""
    if "script" in job:

        def run() -> None:
            sys.argv = [job["script"], *job["args"]]
            sys.path.insert(0, str(Path(job["script"]).parent))
            runpy.run_path(job["script"], run_name="__main__")

        return run
    return lambda: getattr(importlib.import_module(job["module"]), job["function"])(*job["args"])


def become_rank(rank: int, job: dict[str, Any], meeting: store.Store) -> None:
    """Run one rank of ``job`` in this (forked) process, and end it."""
    code = 1
    meeting.release()
    out = Path(job["out"])
    for name, stream in (("stdout", 1), ("stderr", 2)):
        file = os.open(out / f"{name}.{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    world = str(job["ranks"])
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"}
    os.environ |= {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
    os.environ |= meeting.environment() | {"TORCHELASTIC_RESTART_COUNT": "0"}
    os.environ |= job["env"]
    os.chdir(job["directory"])
    try:
        from fsdp_migrate.verify.capture import cpu_patches
        from tests.training import fsdp1, observe

        cpu_patches.install_means(lambda what: None)  # for torch before 2.13

        if job["fsdp1"]:
            getattr(fsdp1, job["fsdp1"])()
        if "script" in job:
            observe.watch(out / f"models.{rank}")
            if job["fsdp1"] == "allow":
                observe.watch_uses(Path(job["script"]).parent, out / f"uses.{rank}")
        work(job)()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def perform(job: dict[str, Any]) -> dict[str, Any]:
    """Run all ranks; end the others soon after one fails, and all when time is up."""
    meeting = store.start()
    children: dict[int, int] = {}
    for rank in range(job["ranks"]):
        pid = os.fork()
        if pid == 0:
            become_rank(rank, job, meeting)
        children[pid] = rank
    codes: list[int | None] = [None] * job["ranks"]
    deadline = time.monotonic() + job["timeout"]
    timed_out = False
    pause = 0.002
    while children:
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                code = os.waitstatus_to_exitcode(status)
                codes[children.pop(pid)] = code
                if code:
                    deadline = min(deadline, time.monotonic() + job["grace"])
        if children and time.monotonic() > deadline:
            timed_out = not any(codes)
            for pid in children:
                os.kill(pid, signal.SIGUSR1)  # say where it stands
            time.sleep(0.2)
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            for pid, rank in children.items():
                os.waitpid(pid, 0)
                codes[rank] = -signal.SIGKILL
            children.clear()
        time.sleep(pause)
        pause = min(pause * 1.3, 0.05)
    meeting.close()
    return {"codes": codes, "timed_out": timed_out}


def serve() -> None:
    requests, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    import torch
    import torch._dynamo
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp
    import torch.distributed.fsdp.sharded_grad_scaler
    import torch.distributed.tensor
    import torch.utils.serialization

    # What nearly every rank would import.
    import fsdp_migrate.verify.capture.cpu_patches  # noqa: F401
    import tests.training.fsdp1
    import tests.training.observe  # noqa: F401

    torch.set_num_threads(1)
    # The objects made so far are nobody's model: ranks need not look through them, nor copy the
    # memory in which that would be noted.
    gc.collect()
    gc.freeze()
    for line in requests:
        answers.write(json.dumps(perform(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve()
