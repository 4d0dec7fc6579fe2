"""What configurations name for hydra to call: ``_target_: package.wrapping.shard``.

``hydra.utils.instantiate(cfg.wrapper, model=model)`` calls what the files have as ``_target_``
below ``wrapper:``, or in a file of the group ``wrapper``, and ``hydra.utils.get_method(cfg.shard)``
gives what stands behind ``shard:``. Lines are read as text, which is enough for that and needs no
library.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fsdp_migrate.discovery.walk import SKIPPED

SUFFIXES = (".yaml", ".yml")
TARGET = b"_target_"
LARGEST = 1_000_000  # bytes; larger files are data
LINE = re.compile(rb"^([ ]*(?:-[ ]+)*)[\"']?([\w.-]+)[\"']?[ ]*:(?:[ ]+(.*))?$")
PLAIN = re.compile(  # ``shard: package.wrapping.shard``
    rb"(?m)^[ ]*(?:-[ ]+)*[\"']?([\w-]+)[\"']?[ ]*:[ ]+[\"']?"
    rb"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)[\"']?[ \t]*(?:#.*)?\r?$"
)
NAME = re.compile(rb"[\"']?([A-Za-z_]\w*(?:\.\w+)+)[\"']?[ \t]*(?:#.*)?\r?$")


def targets(directories: Sequence[Path]) -> Mapping[str, tuple[str, ...]]:
    """The dotted names that configurations below some directories have as ``_target_``, by the key
    that they stand below; an empty name where it is not written out. And those that are the
    value of a key itself, by the key with its colon."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for path in _files(directories):
        data = _read(path)
        for match in PLAIN.finditer(data):
            if match[1] != TARGET:
                found[f"{match[1].decode()}:"][match[2].decode()] = None
        if TARGET in data:
            for key, name in _named(data, path):
                found[key][name] = None
    return {key: tuple(names) for key, names in found.items()}


def _files(directories: Sequence[Path]) -> Iterator[Path]:
    seen: set[str] = set()
    for top in directories:
        for directory, below, names in os.walk(top):
            below[:] = sorted(set(below) - SKIPPED)
            for name in sorted(names):
                path = os.path.join(directory, name)
                if name.endswith(SUFFIXES) and path not in seen and not os.path.islink(path):
                    seen.add(path)
                    yield Path(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.stat().st_size <= LARGEST else b""
    except OSError:
        return b""


def _named(data: bytes, path: Path) -> Iterator[tuple[str, str]]:
    """Every target of a file, with the keys that code may reach it by."""
    lines = data.split(b"\n")
    for number, line in enumerate(lines):
        match = LINE.match(line.rstrip(b"\r")) if TARGET in line else None
        if match is None or match[2] != TARGET:
            continue
        name = NAME.match(match[3] or b"")
        dotted = name[1].decode() if name is not None else ""
        around = _key_around(lines, number, len(match[1]))
        if around:
            yield around, dotted
        else:  # of a file that is itself the value: of its group, or under its own name
            yield path.parent.name, dotted
            yield path.stem, dotted


def _key_around(lines: Sequence[bytes], number: int, indent: int) -> str:
    """The key that a line stands below."""
    for line in reversed(lines[:number]):
        match = LINE.match(line.rstrip(b"\r"))
        if match is not None and len(match[1]) < indent:
            return match[2].decode()
    return ""
