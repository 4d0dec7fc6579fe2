"""A process of the project's interpreter that has imported torch and forks ranks on request.

The other side of :mod:`fsdp_migrate.verify.inject.server`. It never touches a GPU, so that its
forks can: a fork cannot take a CUDA context along.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.inject.config import VARIABLE

_START_S = 180.0
_ONE_PER_RUN = (VARIABLE, "TMPDIR")


class NotStarted(Exception):
    """The server did not come up; its message is what it printed last."""


class WarmServer:
    """Forks ranks in the environment ``env``, which all of them share but for its private part.

    Use it as a context manager, or call :meth:`close`.
    """

    def __init__(self, python: str, env: Mapping[str, str], log: Path) -> None:
        self.python = python
        self._env = _shared(env)
        self._log = log
        self._buffer = b""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WarmServer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def fits(self, python: str, env: Mapping[str, str]) -> bool:
        """Whether a run of ``python`` in ``env`` can be forked from this server."""
        return self.python == python and self._env == _shared(env)

    def run(
        self, target: Sequence[str], *, env: Mapping[str, str], cwd: Path, world: int, logs: Path
    ) -> WarmRun:
        """Fork ``world`` ranks that run ``target`` (see the server for its form).

        Raises:
            NotStarted: the interpreter cannot be started, or cannot import torch.
        """
        process = self._alive()
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "launcher.log").touch()
        request = {
            "target": list(target),
            "env": dict(env),
            "cwd": str(cwd),
            "world": world,
            "logs": str(logs.resolve()),
        }
        assert process.stdin is not None
        process.stdin.write((json.dumps(request) + "\n").encode())
        process.stdin.flush()
        return WarmRun(self)

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._buffer = b""
        keep = not sys.dont_write_bytecode  # what is in the server's environment is not the user's
        with open(self._log, "ab") as log:
            try:
                self._process = subprocess.Popen(
                    [self.python, str(inject.SERVER), *(["--keep-bytecode"] * keep)],
                    env=self._env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise NotStarted(str(error)) from None
        if self.answer(_START_S) is None:
            self.close()
            lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise NotStarted(lines[-1] if lines else "it ended without a word")
        return self._process

    def answer(self, timeout: float) -> dict[str, int] | None:
        """The next answer if it comes within ``timeout`` seconds; None when it does not, or when
        the server has ended."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([process.stdout], [], [], timeout)
            if not ready:
                return None
            data = os.read(process.stdout.fileno(), 4096)
            if not data:
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, int] = json.loads(line)
        return answer

    @property
    def ended(self) -> bool:
        """Whether the server process is gone."""
        return self._process is None or self._process.poll() is not None

    def close(self) -> None:
        """End the server. Ranks that still run are not its concern."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


class WarmRun:
    """The ranks of one request, seen like a process."""

    def __init__(self, server: WarmServer) -> None:
        self._server = server
        self._code: int | None = None

    def poll(self) -> int | None:
        """The code once all ranks have ended, negative for a signal; None before."""
        if self._code is None:
            answer = self._server.answer(0.0)
            if answer is not None:
                self._code = answer["code"]
            elif self._server.ended:
                self._code = 1
        return self._code

    def wait(self, timeout: float) -> None:
        """Wait for the end of the ranks. When they do not end, the server is given up, since it
        would answer the next request with the end of this one."""
        if self._code is None:
            answer = self._server.answer(timeout)
            if answer is None:
                self._server.close()
            self._code = answer["code"] if answer is not None else 1


def _shared(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in _ONE_PER_RUN}
