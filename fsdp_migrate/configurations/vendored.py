"""A framework that stands among the files itself, as research code often has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from fsdp_migrate.configurations.recognise import VERL

WORKERS = ("verl", "workers", "fsdp_workers.py")
KNOWS = re.compile(rb"[\"']fsdp2[\"']")  # as a value that something is compared with


def too_old(sources: Mapping[Path, bytes], display: Callable[[Path], str]) -> dict[str, str]:
    """Why the settings of a framework stay, by its code: its own copy here knows no FSDP2."""
    copies = [path for path in sources if path.parts[-3:] == WORKERS]
    if not copies or any(KNOWS.search(sources[path]) for path in copies):
        return {}
    return {VERL: f"{display(copies[0])} is of a verl that does not know fsdp2: raise it first"}
