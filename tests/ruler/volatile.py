"""What two runs of the same code may differ in, and what stands in its place in a record.

Everything else that differs is a difference. Files are stored as they are, but for the journal and
for reports, which commands of the ruler write to ``report.*``.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.ruler import package

ROOT = b"/ruler"
JOURNAL = re.compile(r"\.fsdp-migrate/runs/\d+/run\.json")


def screen(said: bytes, root: Path) -> bytes:
    """What a command said, without where it ran, how long it took, and which release it is."""
    said = said.replace(bytes(root), ROOT)
    said = re.sub(rb"(?m)( (?:changed|added|untouched)) +\d+\.\d s$", rb"\1  N s", said)
    version = re.escape(package.VERSION.encode())
    told = rb'(\bfsdp-migrate |"name": "fsdp-migrate",\s+"version": ")' + version + rb"(?!\S*\d)"
    return re.sub(told, rb"\1VERSION", said)


def file(path: str, data: bytes, root: Path) -> bytes:
    """The contents of a file that the tool wrote, without the time in the journal."""
    if JOURNAL.search(path):
        return re.sub(rb'"time": [\d.e+]+', b'"time": NOW', data)
    return screen(data, root) if path.startswith("report.") else data
