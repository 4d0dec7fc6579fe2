"""Write a run's files: each atomically, all of them journalled, so that a run can be undone.

The journal lives in ``.fsdp-migrate/`` at the project's root and keeps itself out of git.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from fsdp_migrate.errors import InputError

DIRECTORY = ".fsdp-migrate"
MANIFEST = "run.json"
KEPT_RUNS = 10
CHANGED = "was changed while it was being rewritten, so nothing was written; run again"
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class WriteError(InputError):
    """A file could not be written or put back. The message names it and what became of the rest."""


@dataclass(frozen=True)
class Undone:
    """What :func:`undo` did: the files put back, or why it touched none of them."""

    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # files that the run had created
    conflicts: tuple[str, ...] = ()  # changed since the run: nothing was put back


@dataclass(frozen=True)
class _Entry:
    """One file of a run: where it is, and the digests of what it held and holds."""

    path: str  # relative to the root
    after: str
    before: str | None  # None: the run created it
    backup: str


# -- writing --------------------------------------------------------------------------------------


def write(
    root: Path, changes: Mapping[Path, bytes], read: Mapping[Path, bytes] | None = None
) -> Path | None:
    """Write ``changes`` (path -> new bytes) and return the journal of the run, None if empty.

    ``read`` holds the contents that the changes were made from; a file that holds something else
    by now is not overwritten. Symbolic links are followed to the file they name; mode bits, owner
    and a hard-linked file's other names stay. If any file cannot be written, or the user
    interrupts, those already written are put back.

    Raises:
        WriteError: a file cannot be written; the tree is as it was.
    """
    if not changes:
        return None
    root = root.resolve()
    targets = {path.resolve(): data for path, data in sorted(changes.items())}
    known = None if read is None else {p.resolve(): d for p, d in read.items() if p in changes}
    _check_writable(targets)
    with _journal(root) as journal, _uninterrupted() as interrupted:
        entries = _record(root, journal, targets, known)
        done: list[_Entry] = []
        try:
            for entry, (path, data) in zip(entries, targets.items(), strict=True):
                interrupted()
                if _digest_of(path) != entry.before:
                    raise WriteError(f"{_shown(path)}: {CHANGED}")
                done.append(entry)
                _replace(path, data)
            interrupted()
        except BaseException as error:
            lost = _put_back(root, journal, done)
            if lost:
                raise _Stranded(f"{error}; {lost}") from error
            if isinstance(error, OSError):
                where = _shown(root / done[-1].path) if done else error.filename
                reason = f"{error.strerror or error}; nothing was written"
                raise WriteError(f"{where}: {reason}") from error
            raise
    _prune(root)
    return journal


class _Stranded(WriteError):
    """The tree could not be put back; the journal must stay."""


@contextlib.contextmanager
def _journal(root: Path) -> Iterator[Path]:
    """A new directory for a run, which disappears when the run fails."""
    home = root / DIRECTORY
    try:
        journal = _new_run(home)
    except OSError as error:
        raise WriteError(f"{home}: {error.strerror or error}") from error
    try:
        yield journal
    except _Stranded:
        raise
    except OSError as error:
        _forget(root, journal)
        raise WriteError(f"{error.filename or home}: {error.strerror or error}") from error
    except BaseException:
        _forget(root, journal)
        raise


def _new_run(home: Path) -> Path:
    runs = home / "runs"
    runs.mkdir(parents=True, exist_ok=True)
    ignore = home / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n")
    number = max((int(p.name) for p in runs.iterdir() if p.name.isdigit()), default=0)
    while True:
        number += 1
        journal = runs / f"{number:06d}"
        try:
            journal.mkdir()
        except FileExistsError:  # another run at the same time
            continue
        return journal


def _record(
    root: Path,
    journal: Path,
    targets: Mapping[Path, bytes],
    known: Mapping[Path, bytes] | None,
) -> list[_Entry]:
    """Keep a copy of every file that will be replaced, then write the list of them."""
    entries = []
    for number, (path, data) in enumerate(targets.items()):
        before = path.read_bytes() if path.exists() else None
        if known is not None and before != known.get(path):
            raise WriteError(f"{_shown(path)}: {CHANGED}")
        backup = f"{number}.bak"
        if before is not None:
            _replace(journal / backup, before)
            _dress(journal / backup, path)
        digest = None if before is None else _digest(before)
        entries.append(_Entry(os.path.relpath(path, root), _digest(data), digest, backup))
    manifest = {"version": 1, "time": time.time(), "files": [asdict(entry) for entry in entries]}
    _replace(journal / MANIFEST, json.dumps(manifest, indent=1).encode())
    return entries


def _put_back(root: Path, journal: Path, entries: Sequence[_Entry]) -> str:
    """Undo a run that failed in the middle; what could not be put back, if anything."""
    lost = []
    for entry in entries:
        path = root / entry.path
        try:
            if _digest_of(path) == entry.before:
                continue
            if entry.before is None:
                path.unlink()
            elif path.stat().st_nlink > 1:
                _replace(path, (journal / entry.backup).read_bytes())
            else:
                # Renaming needs no space: the disk may be full.
                os.replace(journal / entry.backup, path)
        except OSError as error:
            lost.append(f"{_shown(path)} ({error.strerror or error})")
    return f"could not put back {', '.join(lost)}: copies are in {journal}" if lost else ""


@contextlib.contextmanager
def _uninterrupted() -> Iterator[Callable[[], None]]:
    """Hold signals back; the function it gives raises KeyboardInterrupt where one may come."""
    arrived: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    def interrupted() -> None:
        if arrived:
            arrived.clear()
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return
    before = {number: signal.signal(number, remember) for number in _SIGNALS}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- undoing --------------------------------------------------------------------------------------


def undo(root: Path) -> Undone | None:
    """Put the last run back; None when there is none.

    If a file was edited after the run, nothing is touched and the run stays in the journal.

    Raises:
        WriteError: a file cannot be put back, or the journal cannot be read.
    """
    root = root.resolve()
    journal = latest(root)
    if journal is None:
        return None
    entries = _entries(journal)
    found = {entry: _digest_of(root / entry.path) for entry in entries}
    conflicts = [e.path for e, digest in found.items() if digest not in {e.before, e.after}]
    if conflicts:
        return Undone(conflicts=tuple(conflicts))
    pending = [entry for entry, digest in found.items() if digest != entry.before]
    _check_writable([root / entry.path for entry in pending])
    backups = {entry: _backup(journal, entry) for entry in pending if entry.before is not None}
    restored, removed = [], []
    with _uninterrupted():
        for entry in pending:
            path = root / entry.path
            try:
                if entry in backups:
                    _replace(path, backups[entry])
                    restored.append(entry.path)
                else:
                    path.unlink()
                    removed.append(entry.path)
            except OSError as error:
                message = f"{_shown(path)}: {error.strerror or error}; undo again to go on"
                raise WriteError(message) from error
        _forget(root, journal)
    return Undone(tuple(restored), tuple(removed))


def latest(root: Path) -> Path | None:
    """The journal of the last run under ``root``."""
    runs = _runs(root)
    return runs[-1] if runs else None


def _runs(root: Path) -> list[Path]:
    return sorted(m.parent for m in (root / DIRECTORY / "runs").glob(f"*/{MANIFEST}"))


def _entries(journal: Path) -> list[_Entry]:
    manifest = journal / MANIFEST
    try:
        return [_Entry(**entry) for entry in json.loads(manifest.read_bytes())["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WriteError(f"{manifest}: is not a journal of this version ({error})") from error


def _backup(journal: Path, entry: _Entry) -> bytes:
    path = journal / entry.backup
    data = path.read_bytes() if path.is_file() else None
    if data is None or _digest(data) != entry.before:
        raise WriteError(f"{_shown(path)}: is not what {entry.path} was; nothing was put back")
    return data


def _prune(root: Path) -> None:
    for journal in _runs(root)[:-KEPT_RUNS]:
        shutil.rmtree(journal, ignore_errors=True)


def _forget(root: Path, journal: Path) -> None:
    """Remove a run, and the journal with its last one: the tree is as if we had never been."""
    shutil.rmtree(journal, ignore_errors=True)
    home = root / DIRECTORY
    with contextlib.suppress(OSError):
        (home / "runs").rmdir()
        if {p.name for p in home.iterdir()} == {".gitignore"}:
            (home / ".gitignore").unlink()
            home.rmdir()


# -- one file -------------------------------------------------------------------------------------


def _shown(path: Path) -> str:
    """A path for messages: relative where it lies below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _check_writable(paths: Sequence[Path] | Mapping[Path, bytes]) -> None:
    """A read-only file is its owner's wish, even where the directory would let us replace it."""
    refused = []
    for path in paths:
        if path.exists() and not _writable(path):
            refused.append(f"{_shown(path)}: is read-only")
        elif not path.parent.is_dir():
            refused.append(f"{_shown(path.parent)}: is not a directory")
        elif not _writable(path.parent):
            refused.append(f"{_shown(path)}: its directory is read-only")
    if refused:
        more = f" (and {len(refused) - 3} more)" if len(refused) > 3 else ""
        raise WriteError("; ".join(refused[:3]) + more)


def _writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and bool(path.stat().st_mode & stat.S_IWUSR)


def _replace(path: Path, data: bytes) -> None:
    """Write a file so that it is never seen half written."""
    if path.exists() and path.stat().st_nlink > 1:
        # Replacing would cut the file off from its other names; the journal has the old bytes.
        _overwrite(path, data)
        return
    descriptor, name = tempfile.mkstemp(prefix=".fsdp-migrate-", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not path.exists():
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
        elif not _dress(temporary, path):
            temporary.unlink()
            _overwrite(path, data)
            return
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _dress(new: Path, old: Path) -> bool:
    """Give ``new`` the owner, mode and extended attributes of ``old``; False if we may not."""
    was, now = old.stat(), new.stat()
    if (was.st_uid, was.st_gid) != (now.st_uid, now.st_gid):
        try:
            os.chown(new, was.st_uid, was.st_gid)
        except OSError:
            return False
    new.chmod(stat.S_IMODE(was.st_mode))
    if hasattr(os, "listxattr"):  # access control lists among them
        with contextlib.suppress(OSError):
            for name in os.listxattr(old):
                os.setxattr(new, name, os.getxattr(old, name))
    return True


def _overwrite(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of(path: Path) -> str | None:
    """The digest of a file's contents, None when there is no such file."""
    try:
        return _digest(path.read_bytes())
    except FileNotFoundError:
        return None
