"""The project around a path, and which paths may be read and written.

A path *escapes* if a symbolic link on its way leads out of the project that it lies in.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.errors import InputError


class PathProblem(InputError):
    """A given path cannot be used. The message names it."""


def accept(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The paths made absolute; and, with the reason, those that are refused because they escape.

    A path may escape to where another of the paths is.

    Raises:
        PathProblem: a path cannot be used.
    """
    ends = {path: find_escape(path) for path in map(make_absolute, paths)}
    trees = [writable_tree(path) for path, end in ends.items() if end is None and path.is_dir()]
    taken, refused = [], []
    for path, end in ends.items():
        if end is None or any(end.is_relative_to(top) for top in trees):
            taken.append(path)
        else:
            refused.append((path, f"a link leads out of its project, to {end}; name that instead"))
    return taken, refused


def make_absolute(path: Path) -> Path:
    """The path made absolute. Links are resolved only where ``..`` steps out of one.

    Raises:
        PathProblem: it cannot be used.
    """
    absolute = Path.cwd() / path
    if ".." in absolute.parts:
        absolute = Path(os.path.realpath(absolute.parent)) / absolute.name
        absolute = absolute.resolve() if absolute.name == ".." else absolute
    if not absolute.exists():
        reason = "is a link to nothing" if absolute.is_symlink() else "does not exist"
        raise PathProblem(f"{path}: {reason}")
    if not (absolute.is_file() or absolute.is_dir()):
        raise PathProblem(f"{path}: is neither a file nor a directory")
    return absolute


def find_escape(path: Path) -> Path | None:
    """Where an absolute path leads to, if a link on its way leaves the project that it lies in.

    Outside of projects, a linked file may not leave its directory, and nothing in the working
    directory may leave that. Other links to directories are the user's own.
    """
    here = Path.cwd()
    for link in (*reversed(path.parents), path):
        if not link.is_symlink():
            continue
        home = project_root(link.parent)
        if home is None and link.is_file():
            home = link.parent
        if home is None and link.is_relative_to(here):
            home = here
        if home is not None and not real_path(link).is_relative_to(real_path(home)):
            return real_path(path)
    return None


def real_path(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve() fails for a link to itself


def check_output(path: Path) -> None:
    """Refuse to write a report to a path that escapes, or to what is no file and no device.

    Raises:
        OSError: the report must not be written there.
    """
    end = find_escape(path.absolute())
    if Path("/dev") in path.parents:
        return  # the user's own streams
    if end is not None:
        raise OSError(errno.ELOOP, f"a link leads out of its project, to {end}", str(path))
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise OSError(errno.EINVAL, "is there and is not a regular file", str(path))


def writable_tree(path: Path) -> Path:
    """The directory in which files may be written when the user names ``path``.

    It is the path itself if that is a directory. For a file it is the project, or, without one,
    the directory that its packages are in.
    """
    real = real_path(path)
    if path.is_dir():
        return real
    home = project_root(path.parent)
    if home is None:
        outermost = outermost_package(path.parent)
        home = path.parent if outermost is None else outermost.parent
    return real_path(home) if real.is_relative_to(real_path(home)) else real.parent


def outermost_package(directory: Path) -> Path | None:
    """The outermost package that a directory is or lies in."""
    outermost = None
    while (directory / "__init__.py").is_file() and directory != directory.parent:
        outermost, directory = directory, directory.parent
    return outermost


def read_regular_file(path: Path, within: Sequence[Path] = ()) -> bytes:
    """The contents of a regular file that, with all links resolved, lies in one of ``within``.

    Without ``within`` it must lie in the repository around it.

    Raises:
        OSError: it lies elsewhere, is no regular file, or cannot be read.
    """
    real = real_path(path)
    allowed = within or (git_root(path.parent) or path.parent,)
    if not any(real.is_relative_to(real_path(directory)) for directory in allowed):
        raise OSError(errno.ELOOP, f"a link leads out of the project, to {real}", str(path))
    if not stat.S_ISREG(real.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return real.read_bytes()


def project_root(directory: Path) -> Path | None:
    """The nearest directory upwards with ``pyproject.toml``, else the top of the git work tree."""
    repository = git_root(directory)
    for candidate in (directory, *directory.parents):
        if (candidate / "pyproject.toml").is_file():
            return candidate
        if candidate == repository:
            break
    return repository


def git_root(path: Path) -> Path | None:
    """The top of the git work tree that ``path`` lies in."""
    for directory in (path, *path.parents):
        if (directory / ".git").exists():
            return directory
    return None
