"""Whether others may install a project and use its functions, or it is a program alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

INSTALLERS = ("setup.py", "setup.cfg")
INSTALLED = ("*.dist-info", "*.egg-info")


def is_published(root: Path, data: Mapping[str, Any]) -> bool:
    """``data`` is ``pyproject.toml``. A package may stand one or two directories below the root,
    and a directory that is no project of its own may be in anything."""
    if data.get("project") or data.get("build-system") or "poetry" in data.get("tool", {}):
        return True
    below = ("", "*/", "*/*/")
    names = (*INSTALLERS, *INSTALLED)
    if any(next(root.glob(f"{way}{name}"), None) for name in names for way in below):
        return True
    others = (path for way in below[1:] for path in root.glob(f"{way}pyproject.toml"))
    return next(others, None) is not None or not _is_whole(root)


def _is_whole(root: Path) -> bool:
    """Whether a directory is a repository, or looks like the whole of one."""
    if (root / ".git").exists():
        return True
    return any(next(root.glob(name), None) for name in ("README*", "LICENSE*", "requirements*.txt"))
