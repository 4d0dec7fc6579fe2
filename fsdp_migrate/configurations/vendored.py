"""What the Python beside settings says of a framework: a copy of it, how it is called, or what of
its models is packed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from fsdp_migrate.configurations.frameworks.accelerate import STORAGE
from fsdp_migrate.configurations.recognise import COMPOSER, OLD_ARGUMENT, VERL
from fsdp_migrate.configurations.settings import Setting

WORKERS = ("verl", "workers", "fsdp_workers.py")
OF_COMPOSER = re.compile(rb"(?m)^[ \t]*(?:from|import)[ \t]+composer\b")
OLD = re.compile(rb"[(,]\s*fsdp_config[ \t]*=(?![ \t]*None\b)")  # as an argument
NEW = re.compile(rb"\bparallelism_config[ \t]*=")
KNOWS = re.compile(rb"[\"']fsdp2[\"']")  # as a value that something is compared with

STORED = re.compile(
    rb"\b(?:bnb_4bit_)?quant_storage[ \t]*=[ \t]*(?:torch\.|[\"'])(bfloat16|float16|float32)\b"
)


def storage(
    read: Callable[[], Iterable[tuple[Path, bytes]]], display: Callable[[Path], str]
) -> list[Setting]:
    """The dtypes that quantised weights are stored as, with the file that says so."""
    found: dict[str, str] = {}
    for path, data in read():
        for match in STORED.finditer(data):
            found.setdefault(match[1].decode(), display(path))
    return [Setting(STORAGE, f"{dtype} in {shown}") for dtype, shown in found.items()]


def too_old(sources: Mapping[Path, bytes], display: Callable[[Path], str]) -> dict[str, str]:
    """Why the settings of a framework stay, by its code: what runs here knows no FSDP2."""
    found = {}
    copies = [path for path in sources if path.parts[-3:] == WORKERS]
    if copies and not any(KNOWS.search(sources[path]) for path in copies):
        shown = display(copies[0])
        found[VERL] = f"{shown} is of a verl that does not know fsdp2: raise it first"
    callers = [path for path in sources if OF_COMPOSER.search(sources[path])]
    old = [path for path in callers if OLD.search(sources[path])]
    if old and not any(NEW.search(sources[path]) for path in callers):
        found[COMPOSER] = f"{OLD_ARGUMENT} ({display(old[0])})"
    return found
