"""Replace one file so that it is never seen half written, whatever ends the process."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

PREFIX, NEW = ".fsdp-migrate-", "new"
IGNORED = "*\n"  # of git, this file among it
OURS = {".gitignore", NEW}


def clean(directories: Iterable[Path]) -> None:
    """Remove what processes that were killed left in directories; nothing but what is ours."""
    for directory in dict.fromkeys(directories):
        try:
            found = [each for each in os.scandir(directory) if each.name.startswith(PREFIX)]
        except OSError:
            continue
        for each in found:
            with contextlib.suppress(OSError):
                if each.is_dir(follow_symlinks=False) and {*os.listdir(each)} <= OURS:
                    shutil.rmtree(each)


def replace(path: Path, data: bytes, shared: frozenset[Path]) -> None:
    """Write a file so that it is never seen half written."""
    if path in shared:
        # Replacing would cut the file off from its other names; the journal has the old bytes.
        _overwrite(path, data)
        return
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=path.parent))
    temporary = folder / NEW
    try:
        (folder / ".gitignore").write_text(IGNORED)  # should this process be killed
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if not path.exists():
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
        elif not _dress(temporary, path):
            if path.stat().st_nlink > 1:
                raise PermissionError(errno.EPERM, "has other names and another owner", str(path))
            _overwrite(path, data)
            return
        os.replace(temporary, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK) and bool(path.stat().st_mode & stat.S_IWUSR)
