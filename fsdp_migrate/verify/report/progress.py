"""One line on a terminal that says what is being run."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from fsdp_migrate.verify.events import Event, Role, Stage
from fsdp_migrate.verify.settings import ALL_STEPS

_QUIET_S = 0.5

_NAMES = {Role.BEFORE: "original", Role.AFTER: "migrated", Role.TWIN: "noise twin"}


class Progress:
    """A listener for events; its line is gone when it is done. Silent where no terminal is."""

    def __init__(self, most: int, stream: TextIO | None = None) -> None:
        self._most = most
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __call__(self, event: Event) -> None:
        """Show where the verification is."""
        if not self._live or time.monotonic() - self._started < _QUIET_S:
            return
        self._shown = True
        self._stream.write(f"\r\x1b[K{self._line(event)}")
        self._stream.flush()

    def _line(self, event: Event) -> str:
        if event.stage is Stage.JUDGE or event.role is None:
            return "comparing"
        name = _NAMES[event.role]
        if event.stage is Stage.STEP:
            most = f" of {self._most}" if self._most < ALL_STEPS else ""
            return f"{name}: step {event.step}{most}"
        return f"{name}: {'starting' if event.stage is not Stage.FINISH else 'done'}"
