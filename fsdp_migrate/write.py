"""Write a run's files: each atomically, all of them journalled, so that a run can be undone.

The journal lives in ``.fsdp-migrate/`` at the project's root and keeps itself out of git.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = ".fsdp-migrate"
MANIFEST = "run.json"


class WriteError(Exception):
    """A file could not be written or put back. The message names it; nothing else was changed."""


@dataclass(frozen=True)
class Undone:
    """What :func:`undo` did: files put back, and files left because they changed since."""

    restored: tuple[str, ...]
    conflicts: tuple[str, ...]


def write(root: Path, changes: Mapping[Path, bytes]) -> Path | None:
    """Write ``changes`` (path -> new bytes) and return the journal of the run, None if empty.

    Symbolic links are followed to the file they name, mode bits stay, a hard-linked file keeps its
    other names. If any file cannot be written, those already written are put back.

    Raises:
        WriteError: a file cannot be written; the tree is as it was.
    """
    if not changes:
        return None
    targets = {_real(path): data for path, data in sorted(changes.items())}
    for path in targets:
        _check_writable(path)
    journal = _new_journal(root)
    entries = []
    for number, (path, data) in enumerate(targets.items()):
        entry: dict[str, object] = {
            "path": os.path.relpath(path, root),
            "after": _digest(data),
            "created": not path.exists(),
        }
        if path.exists():
            before = path.read_bytes()
            entry["before"] = _digest(before)
            entry["backup"] = f"{number}.bak"
            (journal / f"{number}.bak").write_bytes(before)
        entries.append(entry)
    manifest = {"version": 1, "root": str(root), "time": time.time(), "files": entries}
    _replace(journal / MANIFEST, json.dumps(manifest, indent=1).encode())
    done: list[Path] = []
    try:
        for path, data in targets.items():
            done.append(path)
            _replace(path, data)
    except BaseException as error:  # Ctrl-C included: a run is whole or not at all
        _put_back(root, journal, {str(p) for p in done})
        shutil.rmtree(journal)
        if isinstance(error, OSError):
            raise WriteError(f"{done[-1]}: {error.strerror or error}") from error
        raise
    return journal


def undo(root: Path) -> Undone | None:
    """Put the last run back; None when there is none.

    A file that was edited after the run is left alone and named as a conflict; its run stays in
    the journal.
    """
    journal = latest(root)
    if journal is None:
        return None
    manifest = _manifest(journal)
    restored, conflicts = [], []
    for entry in manifest["files"]:
        path = root / entry["path"]
        current = _digest(path.read_bytes()) if path.exists() else None
        if current == entry.get("before"):
            continue  # as it was before the run already
        if current != entry["after"]:
            conflicts.append(entry["path"])
            continue
        if entry["created"]:
            path.unlink()
        else:
            _replace(path, (journal / entry["backup"]).read_bytes())
        restored.append(entry["path"])
    if not conflicts:
        shutil.rmtree(journal)
    return Undone(tuple(restored), tuple(conflicts))


def latest(root: Path) -> Path | None:
    """The journal of the last run under ``root``."""
    runs = sorted((root / DIRECTORY / "runs").glob(f"*/{MANIFEST}"))
    return runs[-1].parent if runs else None


def _manifest(journal: Path) -> dict[str, list[dict[str, str]]]:
    loaded: dict[str, list[dict[str, str]]] = json.loads((journal / MANIFEST).read_text())
    return loaded


def _new_journal(root: Path) -> Path:
    home = root / DIRECTORY
    try:
        home.mkdir(exist_ok=True)
        (home / ".gitignore").write_text("*\n")
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 10**9:09d}"
        journal = home / "runs" / name
        journal.mkdir(parents=True)
    except OSError as error:
        raise WriteError(f"{home}: {error.strerror or error}") from error
    return journal


def _put_back(root: Path, journal: Path, paths: set[str]) -> None:
    for entry in _manifest(journal)["files"]:
        path = Path(os.path.normpath(root / entry["path"]))
        if str(path) not in paths:
            continue
        if entry["created"]:
            path.unlink(missing_ok=True)
        else:
            _replace(path, (journal / entry["backup"]).read_bytes())


def _real(path: Path) -> Path:
    return path.resolve() if path.is_symlink() else path


def _check_writable(path: Path) -> None:
    """A read-only file is its owner's wish, even where the directory would let us replace it."""
    if path.exists() and not os.access(path, os.W_OK):
        raise WriteError(f"{path}: is read-only")
    if path.exists() and not path.stat().st_mode & stat.S_IWUSR:
        raise WriteError(f"{path}: is read-only")
    if not path.parent.is_dir():
        raise WriteError(f"{path.parent}: is not a directory")


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that it is never seen half written."""
    if path.exists() and path.stat().st_nlink > 1:
        # Replacing would cut the file off from its other names; the journal has the old bytes.
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        else:
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
