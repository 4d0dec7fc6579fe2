"""Run ``train.py`` of each folder that is named, on two ranks where CUDA is imitated on CPUs.

The framework that is named first and torch are imported once, and each rank is forked. A program is
given the words in ``arguments.txt`` of its folder, one a line, if there are any. What a rank prints
goes into ``rank-N.txt`` of the folder, its exit status into ``status-N.txt``.
"""

from __future__ import annotations

import importlib
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

WORLD = 2
LONGEST = 120.0  # seconds; a rank that waits for another which is gone is ended


# What the programs import, or a framework once it runs.
SHARED = (
    *("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint"),
    *("torch.utils.flop_counter",),
)
FRAMEWORKS = {
    "composer": ("tests.configurations.absent", "composer", "composer.trainer"),
    "lightning": ("lightning", "lightning.pytorch", "lightning.fabric", "rich.progress"),
    "transformers": (
        *("transformers.trainer", "transformers.models.llama.modeling_llama"),
        *("accelerate", "accelerate.utils.fsdp_utils", "tests.configurations.trained_as"),
    ),
}


def imitate(framework: str) -> None:
    """What ``verify`` does for a program, without its records."""
    for name in (*FRAMEWORKS[framework], *SHARED):
        importlib.import_module(name)

    from torch.distributed.fsdp import CPUOffloadPolicy

    from fsdp_migrate.verify import simulate
    from fsdp_migrate.verify.capture import cpu_patches

    simulate.install()
    said: Any = SimpleNamespace(say_once=lambda *what: None)
    cpu_patches.install_torch(said)
    cpu_patches.install_fsdp1(said)
    cpu_patches.install_means(lambda what: None)
    CPUOffloadPolicy.__init__.__defaults__ = (False,)  # there is nothing to pin memory for


def rank(number: int, folder: Path, port: int) -> NoReturn:
    """Be one rank."""
    output = os.open(folder / f"rank-{number}.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(folder)
    addressed = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}
    sizes = {"WORLD_SIZE": str(WORLD), "LOCAL_WORLD_SIZE": str(WORLD)}
    os.environ.update({**addressed, **sizes, "RANK": str(number), "LOCAL_RANK": str(number)})
    words = Path("arguments.txt")
    sys.argv = ["train.py", *(words.read_text().splitlines() if words.exists() else [])]
    status = 0
    try:
        runpy.run_path("train.py", run_name="__main__")
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main() -> None:
    imitate(sys.argv[1])
    for name in sys.argv[2:]:
        run(Path(name))
        if "already in use" in Path(name, "rank-0.txt").read_text(errors="replace"):
            run(Path(name))  # somebody took the port between finding it and listening there


def run(folder: Path) -> None:
    """Run the program of a folder on all ranks."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    ranks = {}
    for number in range(WORLD):
        child = os.fork()
        if not child:
            rank(number, folder, port)
        ranks[child] = number
    ends = time.monotonic() + LONGEST
    while ranks:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            (folder / f"status-{ranks.pop(child)}.txt").write_text(str(status))
            if status:
                ends = min(ends, time.monotonic() + 3.0)
        elif time.monotonic() > ends:
            for each in ranks:
                os.kill(each, signal.SIGKILL)
            ends += LONGEST
        else:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
