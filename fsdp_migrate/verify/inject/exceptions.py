"""Write down the exceptions that end a recorded program, for the process that watches it."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

from fsdp_migrate.verify.inject import unit_dtypes

# Frames below the program's own, which a plain interpreter would not show.
_HERE = os.path.dirname(os.path.abspath(__file__))
_OURS = frozenset({os.path.join(_HERE, name) for name in ("server.py", "worker.py")}) | {
    "<frozen runpy>"
}

_folder: Path | None = None  # of this process's recording; None where nothing is recorded


def record_into(folder: Path) -> None:
    """Have an exception that ends the program written to ``folder`` before it is shown."""
    global _folder  # noqa: PLW0603 - once per process
    _folder = folder
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _write(folder, error, trace, os.environ.get("RANK"))
        previous(kind, error, trace)

    sys.excepthook = hook


def note_exception(error: BaseException, rank: int) -> None:
    """Write down an exception that someone else is about to catch and report."""
    if _folder is not None:
        _write(_folder, error, error.__traceback__, str(rank))


def _write(
    folder: Path, error: BaseException, trace: TracebackType | None, rank: str | None
) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    record = {
        "rank": rank,
        "pid": os.getpid(),
        "time": time.time(),
        "kind": type(error).__name__,
        "message": str(error),
        "unit": unit_dtypes.told(trace),
        "traceback": "".join(traceback.format_exception(type(error), error, trace)),
    }
    path = folder / f"exception-{os.getpid()}.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    capture = sys.modules.get("fsdp_migrate.verify.capture.attach")
    if capture is not None:
        capture.last_look()
