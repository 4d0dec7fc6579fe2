"""The store through which ranks find each other, in a process of its own.

torchrun's agent holds it, so that it outlives whichever rank ends first. Were rank 0 to hold it,
as torch has it without torchrun, a rank that still sets up a group when rank 0 ends would fail with
"connection reset by peer" (torch/distributed/rendezvous.py, ``_create_c10d_store``).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Store:
    """A running store."""

    process: int
    port: int
    lifeline: int  # the store ends when no process has this file descriptor any more

    def environment(self) -> dict[str, str]:
        """What torchrun tells its ranks about the store."""
        return {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }

    def release(self) -> None:
        """In a rank: leave the store to the process that started it."""
        os.close(self.lifeline)

    def close(self) -> None:
        """In the process that started it: end the store, once no rank is left."""
        os.close(self.lifeline)
        with contextlib.suppress(ChildProcessError):  # it ended before, and was waited for
            os.waitpid(self.process, 0)


def start() -> Store:
    """Fork a process that holds a store.

    Raises:
        OSError: no process or no port could be had.
    """
    ports, port = os.pipe()
    end, lifeline = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(lifeline)
        _hold(port, end)
    os.close(port)
    os.close(end)
    with os.fdopen(ports) as answer:
        number = answer.read()
    if not number:
        os.close(lifeline)
        os.waitpid(process, 0)
        raise OSError("the store of the ranks could not be started")
    return Store(process, int(number), lifeline)


def _hold(port: int, end: int) -> None:
    """Be the process of the store until the lifeline is cut."""
    code = 1
    try:
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(port, str(store.port).encode())
        os.close(port)
        os.read(end, 1)
        code = 0
    finally:
        os._exit(code)
