"""The programs under ``fixtures/``, and verifying them against altered copies of themselves."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report.model import Report
from fsdp_migrate.verify.run import verify

PROGRAMS = Path(__file__).parents[2] / "fixtures" / "programs"

Replaced = tuple[str, str] | tuple[str, str, str]
"""What to replace and by what, in ``train.py`` unless a file is named first."""


def trees(program: str) -> dict[str, Path]:
    """The original and the migrated tree of a program."""
    return {side: PROGRAMS / program / side for side in ("before", "after")}


def altered(tree: Path, target: Path, replaced: Iterable[Replaced]) -> Path:
    """A copy of ``tree`` at ``target`` with statements replaced, each of which must stand there
    exactly once."""
    shutil.copytree(tree, target)
    for change in replaced:
        name, old, new = change if len(change) == 3 else ("train.py", *change)
        path = target / name
        source = path.read_text()
        assert source.count(old) == 1, f"{old!r} must stand exactly once in {name}"
        path.write_text(source.replace(old, new))
    return target


def judged(program: str, *, server: WarmServer | None = None, **changes: Any) -> Report:
    """The verdict on a program of the fixtures and its migration."""
    settings = {**trees(program), "script": "train.py", "max_steps": 5, "timeout": 60.0}
    return verify(Plan(**{**settings, **changes}), server=server)


def failed(report: Report) -> str | None:
    """Key of the gate that names the cause."""
    return report.first_failure.key if report.first_failure else None
