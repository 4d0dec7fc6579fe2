"""The journals of runs: what ``undo`` needs, kept where no repository can put one.

They lie in the user's state directory, one folder a tree, one numbered folder a run in it, with a
manifest and copies of the files that the run replaced. Nothing there is believed unless it is this
user's own, and nobody else's to change. A journal inside a tree is never looked at.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError

VARIABLE = "FSDP_MIGRATE_STATE"
INSIDE = ".fsdp-migrate"  # where earlier versions kept journals in the tree
MANIFEST = "run.json"
VERSION = 2
KEPT_RUNS = 10
# Where platforms keep a user's state, below the home directory.
_USUAL = (".local/state/fsdp-migrate", "Library/Application Support/fsdp-migrate")
_OTHERS_WRITE, _OTHERS_ANY = 0o022, 0o077


class WriteError(InputError):
    """A file could not be written or put back. The message names it and what became of the rest."""


@dataclass(frozen=True)
class Entry:
    """One file of a run: where it really is, and the digests of what it held and holds."""

    path: Path
    after: str
    before: str | None  # None: the run created it
    backup: str  # the name of the copy in the journal


def named(entry: Entry, root: Path) -> str:
    """A file relative to the root where it lies below it."""
    inside = entry.path.is_relative_to(root)
    return str(entry.path.relative_to(root) if inside else entry.path)


# -- where ----------------------------------------------------------------------------------------


def state() -> Path:
    """The directory that journals are kept in.

    Raises:
        WriteError: there is none.
    """
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(named)
    else:
        import platformdirs

        path = platformdirs.user_state_path("fsdp-migrate")
    if not path.is_absolute():
        raise WriteError(f"{path}: journals need an absolute path; set {VARIABLE} to one")
    return path


def _home(root: Path, base: Path) -> Path:
    """The folder of a tree's journals, named after its real root."""
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
    name = re.sub(r"[^\w.-]", "_", root.name, flags=re.ASCII)[:64]
    return base / "runs" / f"{name}-{digest}"


@contextlib.contextmanager
def opened(root: Path, base: Path) -> Iterator[Path]:
    """The folder of a tree's journals, made when it is not there; one process at a time has it.

    Raises:
        WriteError: it cannot be made, or may be somebody else's work.
    """
    home = _home(root, base)
    with contextlib.ExitStack() as stack:
        try:
            base.parent.mkdir(parents=True, exist_ok=True)
            _make(base, root, base)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(base / "lock", flags, 0o600)
            stack.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX)
            _make(home.parent, root, base)
            _make(home, root, base)
        except OSError as error:
            raise _unusable(base, error.strerror or str(error)) from error
        yield home


def _make(directory: Path, root: Path, base: Path) -> None:
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    _check(directory, root, base)


def _unusable(path: Path, reason: str) -> WriteError:
    return WriteError(
        f"{path}: {reason}; journals are not kept or read there, so nothing was written. "
        f"Set {VARIABLE} to a directory of your own"
    )


def _check(path: Path, root: Path, base: Path, kind: int = stat.S_IFDIR) -> None:
    """Refuse a part of the journal that somebody else may have made or changed."""
    status = path.lstat()
    # A checkout makes no directory that only its owner may read.
    others = _OTHERS_WRITE if path == base else _OTHERS_ANY
    if stat.S_ISLNK(status.st_mode):
        reason = "is a link"
    elif stat.S_IFMT(status.st_mode) != kind:
        reason = "is not a directory" if kind == stat.S_IFDIR else "is not a file"
    elif status.st_uid != os.geteuid():
        reason = "belongs to another user"
    elif status.st_mode & others:
        reason = "is open to other users"
    elif path == base and (around := _project_around(base, root)) is not None:
        reason = f"lies in the project {around}"
    else:
        return
    raise _unusable(path, reason)


def _project_around(base: Path, root: Path) -> Path | None:
    """The part of the tree that a state directory lies in: who made the tree may have made it too.

    In the platform's usual place for a user's state only a project around it counts, because a home
    directory may be the tree.
    """
    usual = base in [Path(os.path.expanduser("~"), place) for place in _USUAL]
    if usual:
        whole = root if project_paths.project_root(root) is not None else None
    else:
        whole = project_paths.git_root(root) or project_paths.outermost_package(root) or root
    return whole if whole is not None and base.resolve().is_relative_to(whole) else None


def outside(trees: Sequence[Path], root: Path, given: Sequence[Path] = ()) -> list[Path]:
    """The trees that lie neither in the repository around ``root``, nor beside the packages that
    ``root`` is in, nor in one of ``given``."""
    packages = project_paths.outermost_package(root)
    whole = project_paths.git_root(root) or (root if packages is None else packages.parent)
    bounds = (whole, *given)
    return [tree for tree in trees if not any(tree.is_relative_to(bound) for bound in bounds)]


# -- runs -----------------------------------------------------------------------------------------


def runs(home: Path) -> list[Path]:
    """The runs of a tree whose manifest was written, oldest first."""
    return [run for run in _numbered(home) if os.path.lexists(run / MANIFEST)]


def _numbered(home: Path) -> list[Path]:
    found = [p for p in home.iterdir() if re.fullmatch(r"[0-9]{1,18}", p.name)]
    return sorted(found, key=lambda p: int(p.name))


def any_run(root: Path, base: Path) -> bool:
    """Whether there is a run to undo; nothing is made to find out."""
    home = _home(root, base)
    return home.is_dir() and bool(runs(home))


def new_run(home: Path) -> Path:
    """A folder for one more run. What runs that were killed early left is removed."""
    present = _numbered(home)
    for run in present:
        if not os.path.lexists(run / MANIFEST):
            shutil.rmtree(run, ignore_errors=True)
    run = home / f"{int(present[-1].name) + 1 if present else 1:06d}"
    run.mkdir(mode=0o700)
    return run


def directories(home: Path) -> list[Path]:
    """Where the runs of a tree wrote, as far as their manifests can be read and are our own."""
    found: dict[Path, None] = {}
    for run in runs(home):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            files = json.loads((run / MANIFEST).read_bytes())["files"]
            found |= dict.fromkeys(_absolute(file["path"]).parent for file in files)
    return list(found)


def prune(home: Path) -> None:
    """Forget all runs but the last ones."""
    for run in runs(home)[:-KEPT_RUNS]:
        shutil.rmtree(run, ignore_errors=True)


def forget(run: Path) -> None:
    """Remove a run, and the folder of its tree with the last one."""
    shutil.rmtree(run, ignore_errors=True)
    with contextlib.suppress(OSError):
        run.parent.rmdir()


# -- one run --------------------------------------------------------------------------------------


def keep(run: Path, name: str, data: bytes) -> None:
    """Write a new file of the journal."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(run / name, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def record(run: Path, root: Path, trees: Sequence[Path], entries: Sequence[Entry]) -> None:
    """Write the manifest. From now on the run can be undone."""
    manifest = {
        "version": VERSION,
        "time": time.time(),
        "root": str(root),
        "trees": [str(tree) for tree in trees],
        "files": [{**vars(entry), "path": str(entry.path)} for entry in entries],
    }
    keep(run, f"{MANIFEST}.new", json.dumps(manifest, indent=1).encode())
    os.replace(run / f"{MANIFEST}.new", run / MANIFEST)


def entries_of(
    run: Path, root: Path, base: Path, given: Sequence[Path] = ()
) -> tuple[list[Path], list[Entry]]:
    """The trees and files of a run, each file proved to lie in one of the trees, and each tree in
    the repository of ``root`` or in a tree that the user has ``given``.

    Raises:
        WriteError: the journal is not to be trusted; the message names the entry.
    """
    manifest = run / MANIFEST
    try:
        _check(run, root, base)
        _check(manifest, root, base, stat.S_IFREG)
        data = json.loads(manifest.read_bytes())
        if data["version"] != VERSION:
            raise ValueError(f"version {data['version']}")
        written_in = data["root"]
        trees = [_absolute(tree) for tree in data["trees"]]
        entries = [_entry(**file) for file in data["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WriteError(f"{manifest}: is not a journal of this version ({error})") from error
    if written_in != str(root):
        raise WriteError(f"{manifest}: is a journal of {written_in}, so nothing was put back")
    elsewhere = outside(trees, root, given)
    if elsewhere:
        listed = " ".join(map(str, elsewhere))
        raise WriteError(
            f"the last rewrite of {root} wrote outside of it too, so nothing was put back; to put "
            f"back all of it: fsdp-migrate undo {root} {listed}"
        )
    for entry in entries:
        reason = _misplaced(entry.path, trees)
        if reason:
            raise WriteError(f"{manifest}: {entry.path}: {reason}, so nothing was put back")
    return trees, entries


def _entry(path: object, after: object, before: object, backup: object) -> Entry:
    if not (isinstance(path, str) and isinstance(after, str) and isinstance(backup, str)):
        raise TypeError(f"{path!r} is no entry")
    if not (before is None or isinstance(before, str)) or not re.fullmatch(r"\d+\.bak", backup):
        raise TypeError(f"{path!r} has the copy {backup!r}")
    return Entry(_absolute(path), after, before, backup)


def _absolute(path: str) -> Path:
    if os.path.normpath(path) != path or not os.path.isabs(path):
        raise ValueError(f"{path!r} is not where a file really is")
    return Path(path)


def _misplaced(path: Path, trees: Sequence[Path]) -> str:
    """Why a file of a journal is not touched, or an empty text."""
    if not any(path != tree and path.is_relative_to(tree) for tree in trees):
        return "lies in none of the trees of its run"
    if os.path.realpath(path) != str(path):
        return "is reached through a link now"
    if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        return "is not a file now"
    return ""


def copy_of(run: Path, entry: Entry, root: Path, base: Path) -> bytes:
    """What a file held before a run.

    Raises:
        WriteError: the copy is lost, or is not that.
    """
    path = run / entry.backup
    try:
        _check(path, root, base, stat.S_IFREG)
        data = path.read_bytes()
    except OSError:
        data = None
    if data is None or hashlib.sha256(data).hexdigest() != entry.before:
        raise WriteError(f"{path}: is not what {named(entry, root)} was; nothing was put back")
    return data
