"""The project around a path, and links that lead out of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.errors import InputError


class PathProblem(InputError):
    """A given path cannot be used. The message names it."""


def given(paths: Sequence[Path]) -> tuple[list[Path], list[tuple[Path, str]]]:
    """The paths made absolute, and apart from them those that a link leads out of their project,
    to where no other path is either.

    Raises:
        PathProblem: a path cannot be used.
    """
    ends = {path: leads_out(path) for path in map(checked, paths)}
    trees = [tree(path) for path, end in ends.items() if end is None and path.is_dir()]
    taken, refused = [], []
    for path, end in ends.items():
        if end is None or any(end.is_relative_to(top) for top in trees):
            taken.append(path)
        else:
            refused.append((path, f"a link leads out of its project, to {end}; name that instead"))
    return taken, refused


def checked(path: Path) -> Path:
    """The path made absolute; links keep their names, but for those that ``..`` steps out of.

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


def leads_out(path: Path) -> Path | None:
    """Where an absolute path leads to, if a link on its way leaves the project that it lies in.

    Without a project it is a linked file's own directory that counts, and the working directory for
    what is in it. Links to directories elsewhere are the user's own.
    """
    here = Path.cwd()
    for link in (*reversed(path.parents), path):
        if not link.is_symlink():
            continue
        home = project(link.parent)
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
    """Refuse to write a report through a link that stands in a project and leads out of it, or
    into what is no file, but for the devices of the system.

    Raises:
        OSError: it does.
    """
    end = leads_out(path.absolute())
    if Path("/dev") in path.parents:
        return  # the user's own streams
    if end is not None:
        raise OSError(errno.ELOOP, f"a link leads out of its project, to {end}", str(path))
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise OSError(errno.EINVAL, "is there and is not a regular file", str(path))


def tree(path: Path) -> Path:
    """What may be written for a path: the directory; of a file its project, or, without one, the
    directory that its packages are in."""
    real = real_path(path)
    if path.is_dir():
        return real
    home = project(path.parent)
    if home is None:
        outermost = packages(path.parent)
        home = path.parent if outermost is None else outermost.parent
    return real_path(home) if real.is_relative_to(real_path(home)) else real.parent


def packages(directory: Path) -> Path | None:
    """The outermost of the packages that a directory is in, itself included."""
    outermost = None
    while (directory / "__init__.py").is_file() and directory != directory.parent:
        outermost, directory = directory, directory.parent
    return outermost


def read(path: Path, within: Sequence[Path] = ()) -> bytes:
    """The contents of a regular file that really lies in one of the directories; without any, in
    the repository around it.

    Raises:
        OSError: it does not, or cannot be read.
    """
    real = real_path(path)
    allowed = within or (git_root(path.parent) or path.parent,)
    if not any(real.is_relative_to(real_path(directory)) for directory in allowed):
        raise OSError(errno.ELOOP, f"a link leads out of the project, to {real}", str(path))
    if not stat.S_ISREG(real.stat().st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(path))
    return real.read_bytes()


def project(directory: Path) -> Path | None:
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
