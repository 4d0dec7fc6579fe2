"""Start-up of a recorded process, before torch: leave traces of crashes, wait for torch."""

from __future__ import annotations

import faulthandler
import itertools
import os
import signal
import sys
from pathlib import Path

from fsdp_migrate.verify.inject import exceptions, executed, installed, probed
from fsdp_migrate.verify.inject.config import FSDP1, FSDP2, Config
from fsdp_migrate.verify.inject.imports import after_import

# A real-time signal that neither Python, gloo nor NCCL uses. SIGUSR1 is often the program's own
# (Slurm's pre-emption notice).
STACKS_SIGNAL = signal.SIGRTMIN + 3 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch")

_started: Config | None = None


def start(*, forked: bool = False) -> None:
    """Arrange for this process to be recorded, if it was asked for and is not a mere launcher.

    A ``forked`` process says so: its environment, as the system shows it, is not that of the run.
    """
    global _started  # noqa: PLW0603 - once per process, whichever way we came in
    config = Config.from_environment()
    if config is None or _started is not None or _is_launcher():
        return
    _started = config
    installed.lead_into_copy(config.tree, config.trees)
    folder = Path(config.folder)
    (folder / f"boot-{os.environ.get('RANK', 'x')}-{os.getpid()}").touch()
    if forked:
        (folder / f"fork-{os.getpid()}").touch()
    _leave_stacks(folder)
    exceptions.record_into(folder)
    for name in ("torch", FSDP1, FSDP2):
        after_import(name, _attach)
    executed.write_down(folder, config.tree)
    probed.look(folder, config.tree)


def _is_launcher() -> bool:
    """Whether this is torchrun's own process, which trains nothing and need not wait for us."""
    arguments = sys.orig_argv[1:]
    names = [a for flag, a in itertools.pairwise(arguments) if flag == "-m"]
    script = next((a for a in arguments if not a.startswith("-")), "")
    return any(n in _LAUNCHERS for n in names[:1]) or Path(script).name == "torchrun"


def _attach(name: str) -> None:
    # Imported this late because it needs torch, which must be imported by the program itself:
    # importing it early would change the order in which the program's modules see the world.
    from fsdp_migrate.verify.capture import attach

    assert _started is not None
    attach.attach(name, _started)


def _leave_stacks(folder: Path) -> None:
    """Fatal errors and, on request by signal, the stacks of all threads go to a file.

    ``faulthandler`` writes from C, so it works while Python is blocked inside a collective.
    """
    file = open(folder / f"stacks-{os.getpid()}.txt", "w")  # noqa: SIM115 - lives as long as we do
    faulthandler.enable(file=file, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, file=file, all_threads=True, chain=False)
