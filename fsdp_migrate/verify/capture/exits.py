"""Programs that end themselves without the interpreter's own shutdown."""

from __future__ import annotations

import os
from typing import Any

from fsdp_migrate.verify.capture.session import Session, replace


def install(session: Session) -> None:
    """Finish the record before ``os._exit(0)``, which calls no exit handlers.

    Any other code is an error, and what it ends stays unfinished.
    """

    def leave(original: Any, /, status: int) -> None:
        if status == 0:
            session.end("os._exit(0)")
        original(status)

    replace(os, "_exit", leave)
