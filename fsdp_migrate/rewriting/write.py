"""Write a run's files: each atomically, all of them journalled, so that a run can be undone.

Nothing is written through a link that leads out of the trees of the run, nor is anything put back
through one. ``journal.py`` keeps what a run replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from fsdp_migrate.rewriting import journal
from fsdp_migrate.rewriting.journal import Entry, WriteError, named
from fsdp_migrate.rewriting.replacing import clean, is_writable, replace

CHANGED = "was changed while it was being rewritten, so nothing was written; run again"
_NO_FILE = "no file"  # in the place of a digest
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Undone:
    """What :func:`undo` did: the files put back, or why it touched none of them."""

    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # files that the run had created
    conflicts: tuple[str, ...] = ()  # changed since the run: nothing was put back, or all
    rest: int = 0  # files of the run that were not asked for


# -- writing --------------------------------------------------------------------------------------


def require_journal(root: Path) -> None:
    """
    Raises:
        WriteError: nothing could be written, for its journal cannot be kept.
    """
    with journal.opened(root.resolve(), journal.state()):
        pass


def write(
    root: Path,
    changes: Mapping[Path, bytes],
    read: Mapping[Path, bytes] | None = None,
    *,
    trees: Sequence[Path] = (),
    state: Path | None = None,
) -> Path | None:
    """Write ``changes`` (path -> new bytes) and return the journal of the run, None if empty.

    ``read`` holds the contents that the changes were made from; a file that holds something else
    by now is not overwritten, and one that is not in it must not exist yet. All files must really
    lie in ``trees``, without any in ``root``; links inside of them are followed to the file they
    name. Mode bits and owner stay, and so do a hard-linked file's other names in the trees; names
    elsewhere keep what they hold. If any file cannot be written, or the user interrupts, those
    already written are put back.

    Raises:
        WriteError: a file cannot be written; the tree is as it was.
    """
    if not changes:
        return None
    root = root.resolve()
    bounds = [tree.resolve() for tree in trees] or [root]
    targets = _targets(changes, read, bounds)
    known = None if read is None else {p.resolve(): d for p, d in read.items() if p in changes}
    _check_writable(targets)
    with (
        journal.opened(root, state or journal.state()) as home,
        _run(home) as run,
        _uninterrupted() as interrupted,
    ):
        clean([*journal.directories(home), *(path.parent for path in targets)])
        entries = _record(run, targets, known)
        journal.record(run, root, bounds, entries)
        shared = _shared(targets, bounds)
        done: list[Entry] = []
        try:
            for entry, data in zip(entries, targets.values(), strict=True):
                interrupted()
                found = _digest_of(entry.path)
                if found == entry.after and entry.path in shared:
                    continue  # written by another of its names
                if found != entry.before:
                    raise WriteError(f"{_shown(entry.path)}: {CHANGED}")
                done.append(entry)
                replace(entry.path, data, shared)
            interrupted()
        except BaseException as error:
            lost = _put_back(run, done, shared)
            if lost:
                raise _Stranded(f"{error}; {lost}") from error
            if isinstance(error, OSError):
                where = _shown(done[-1].path) if done else error.filename
                reason = f"{error.strerror or error}; nothing was written"
                raise WriteError(f"{where}: {reason}") from error
            raise
        journal.prune(home)
    return run


class _Stranded(WriteError):
    """The tree could not be put back; the journal must stay."""


def _targets(
    changes: Mapping[Path, bytes], read: Mapping[Path, bytes] | None, trees: Sequence[Path]
) -> dict[Path, bytes]:
    """Where each file really is, or will be.

    Raises:
        WriteError: a file is not in the trees, or a link stands where a new file would.
    """
    targets: dict[Path, bytes] = {}
    refused = []
    for path, data in sorted(changes.items()):
        new = path not in read if read is not None else not os.path.lexists(path)
        real = path.parent.resolve() / path.name if new else path.resolve()
        if new and real.is_symlink():
            refused.append(f"{_shown(path)}: is a link where a new file would be")
        elif not any(real != tree and real.is_relative_to(tree) for tree in trees):
            refused.append(f"{_shown(path)}: lies outside of the paths given; give its directory")
        elif os.path.lexists(real) and not real.is_file():
            refused.append(f"{_shown(path)}: is not a file")
        targets[real] = data
    _refuse(refused)
    return targets


@contextlib.contextmanager
def _run(home: Path) -> Iterator[Path]:
    """A new journal, which disappears when the run fails."""
    try:
        run = journal.new_run(home)
    except OSError as error:
        raise WriteError(f"{home}: {error.strerror or error}") from error
    try:
        yield run
    except _Stranded:
        raise
    except OSError as error:
        journal.forget(run)
        raise WriteError(f"{error.filename or home}: {error.strerror or error}") from error
    except BaseException:
        journal.forget(run)
        raise


def _record(
    run: Path, targets: Mapping[Path, bytes], known: Mapping[Path, bytes] | None
) -> list[Entry]:
    """Keep a copy of every file that will be replaced, and list them."""
    entries = []
    for number, (path, data) in enumerate(targets.items()):
        before = path.read_bytes() if path.exists() else None
        if known is not None and before != known.get(path):
            raise WriteError(f"{_shown(path)}: {CHANGED}")
        backup = f"{number}.bak"
        if before is not None:
            journal.keep(run, backup, before)
        digest = None if before is None else _digest(before)
        entries.append(Entry(path, _digest(data), digest, backup))
    return entries


def _put_back(run: Path, entries: Sequence[Entry], shared: frozenset[Path]) -> str:
    """Undo a run that failed in the middle; say what could not be put back, if anything.

    The last file is put back first. So a full disk has room for each, as it had before.
    """
    lost = []
    for entry in reversed(entries):
        try:
            found = _digest_of(entry.path)
            if found == entry.before:
                continue
            if found == _NO_FILE:
                lost.append(f"{_shown(entry.path)} (is not a file now)")
            elif entry.before is None:
                entry.path.unlink()
            else:
                replace(entry.path, (run / entry.backup).read_bytes(), shared)
        except OSError as error:
            lost.append(f"{_shown(entry.path)} ({error.strerror or error})")
    return f"could not put back {', '.join(lost)}: copies are in {run}" if lost else ""


@contextlib.contextmanager
def _uninterrupted() -> Iterator[Callable[[], None]]:
    """Hold signals back. The function that it yields raises KeyboardInterrupt if one has come."""
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


def clean_up(root: Path) -> None:
    """Remove what runs over ``root`` that were killed left beside files.

    Raises:
        WriteError: journals cannot be read.
    """
    root, state = root.resolve(), journal.state()
    if journal.any_run(root, state):
        with journal.opened(root, state) as home:
            clean(journal.directories(home))


def undo(
    root: Path,
    given: Sequence[Path] = (),
    *,
    only: Collection[Path] = (),
    force: bool = False,
) -> Undone | None:
    """Put the last run back, or ``only`` some of its files; None when there is none.

    If a file was edited after the run, nothing is touched and the run stays in the journal, unless
    ``force`` gives up what was edited. A run that wrote outside of the repository of ``root`` is
    put back if those trees are ``given`` too.

    Raises:
        WriteError: a file cannot be put back, or the journal cannot be read or trusted.
    """
    root = root.resolve()
    state = journal.state()
    if not journal.any_run(root, state):
        return None
    with journal.opened(root, state) as home, _uninterrupted():
        clean(journal.directories(home))
        runs = journal.runs(home)
        return _undo(runs[-1], root, state, given, only, force=force) if runs else None


def _undo(
    run: Path,
    root: Path,
    state: Path,
    given: Sequence[Path],
    only: Collection[Path],
    *,
    force: bool,
) -> Undone:
    trees, every = journal.entries_of(run, root, state, given)
    entries = [e for e in every if not only or e.path in only]
    if missing := sorted(set(only) - {e.path for e in entries}):
        listed = ", ".join(map(_shown, missing))
        raise WriteError(f"{listed}: the last rewrite did not write it, so nothing was put back")
    found = {entry: _digest_of(entry.path) for entry in entries}
    edited = [e for e, digest in found.items() if digest not in {e.before, e.after}]
    conflicts = tuple(named(e, root) for e in edited)
    if edited and (not force or any(found[e] == _NO_FILE for e in edited)):
        return Undone(conflicts=conflicts)
    pending = [entry for entry, digest in found.items() if digest != entry.before]
    _check_writable([entry.path for entry in pending])
    backups = {
        entry.path: journal.copy_of(run, entry, root, state)
        for entry in pending
        if entry.before is not None
    }
    shared = _shared(backups, trees)
    restored, removed = [], []
    for entry in pending:
        try:
            if entry.path in backups:
                replace(entry.path, backups[entry.path], shared)
                restored.append(named(entry, root))
            else:
                entry.path.unlink(missing_ok=True)
                removed.append(named(entry, root))
        except OSError as error:
            message = f"{_shown(entry.path)}: {error.strerror or error}; undo again to go on"
            raise WriteError(message) from error
    rest = [e for e in every if e not in entries and _digest_of(e.path) != e.before]
    if not rest:
        journal.forget(run)
    return Undone(tuple(restored), tuple(removed), conflicts, len(rest))


# -- one file -------------------------------------------------------------------------------------


def _shown(path: Path) -> str:
    """A path for messages: relative where it lies below the working directory."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _check_writable(paths: Iterable[Path]) -> None:
    """Refuse to replace a read-only file, even where its directory would allow that."""
    _refuse([f"{_shown(path)}: {why}" for path, why in unwritable(paths).items()])


def unwritable(paths: Iterable[Path]) -> dict[Path, str]:
    """The files that cannot be replaced, and why."""
    found: dict[Path, str] = {}
    for path in paths:
        real = path.resolve()
        if real.exists() and not is_writable(real):
            found[path] = "is read-only"
        elif not real.parent.is_dir():
            found[path] = "its directory is not one"
        elif not is_writable(real.parent):
            found[path] = "its directory is read-only"
    return found


def _refuse(refused: Sequence[str]) -> None:
    if refused:
        more = f" (and {len(refused) - 3} more)" if len(refused) > 3 else ""
        raise WriteError("; ".join(refused[:3]) + more)


def _shared(contents: Mapping[Path, bytes], trees: Sequence[Path]) -> frozenset[Path]:
    """The hard-linked files that stay linked: all their names lie in the trees, and all of those
    that are written get the same contents. Others are cut off from names that must not change."""
    several: dict[tuple[int, int], list[Path]] = {}
    names: Counter[tuple[int, int]] = Counter()
    for path in contents:
        status = path.stat() if path.exists() else None
        if status is not None and status.st_nlink > 1:
            key = (status.st_dev, status.st_ino)
            several.setdefault(key, []).append(path)
            names[key] = -status.st_nlink
    if not several:
        return frozenset()
    walked = (Path(d, f) for tree in trees for d, _, files in os.walk(tree) for f in files)
    for path in dict.fromkeys(walked):
        status = path.lstat()
        if (status.st_dev, status.st_ino) in several:
            names[status.st_dev, status.st_ino] += 1
    together = [
        p for k, p in several.items() if names[k] == 0 and len({contents[f] for f in p}) == 1
    ]
    return frozenset(path for paths in together for path in paths)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of(path: Path) -> str | None:
    """The digest of a file's contents; None if there is no such file; and ``_NO_FILE`` if something
    else is there, or a link is on the way."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(status.st_mode) or os.path.realpath(path) != str(path):
        return _NO_FILE
    return _digest(path.read_bytes())
