"""Programs that make their ranks themselves: ``torch.multiprocessing.spawn``, or processes of their
own that join one process group."""

from __future__ import annotations

import multiprocessing.process
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.capture.session import Session, replace
from fsdp_migrate.verify.inject import exceptions

_STARTED = "FSDP_MIGRATE_VERIFY_STARTED"
"""The environment variable with the id of the process that was started to be recorded, which
processes that it starts inherit."""


def install(session: Session) -> None:
    """Patch ``start_processes``, which ``spawn`` calls."""
    module = sys.modules["torch.multiprocessing.spawn"]

    def start_processes(original: Any, /, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if session.config.per_process:
            _say_and_leave(session)
        return original(Reporting(fn) if _inherited() else fn, *args, **kwargs)

    replace(module, "start_processes", start_processes)


def install_own(session: Session) -> None:
    """Notice processes that the program started itself and that become ranks."""
    started = os.environ.setdefault(_STARTED, str(os.getpid()))

    def is_ours() -> bool:
        return started == str(os.getpid())

    def join(original: Any, /, *args: Any, **kwargs: Any) -> Any:
        if session.config.per_process and not is_ours():
            _say_and_leave(session)
        result = original(*args, **kwargs)
        session.recorder.adopt()
        return result

    def run(original: Any, /, process: Any) -> None:
        try:
            original(process)
        except Exception as error:
            # multiprocessing prints it and goes on to end the process.
            if session.recorder.opened and not is_ours():
                exceptions.note_exception(error, session.recorder.rank)
            raise

    replace(sys.modules["torch.distributed.distributed_c10d"], "init_process_group", join)
    replace(multiprocessing.process.BaseProcess, "run", run)


def _say_and_leave(session: Session) -> None:
    """Every rank of ours would make all ranks of the program: it must be one process instead."""
    (Path(session.config.folder) / "spawns").touch()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


def _inherited() -> bool:
    """Whether a new process will find this package, to unpickle :class:`Reporting`."""
    return str(inject.SITE) in sys.path and not sys.flags.no_site


class Reporting:
    """A function that leaves a record of the exception that ends it, then raises it.

    torch turns such an exception into text and passes it to the parent process, too late to tell
    which rank failed first. Pickled by reference to this module.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, rank: int, *args: Any) -> Any:
        """Call the function as rank ``rank``."""
        try:
            return self.function(rank, *args)
        except Exception as error:
            exceptions.note_exception(error, rank)
            raise
