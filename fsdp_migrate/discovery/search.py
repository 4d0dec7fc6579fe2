"""Which files are looked at, and how closely.

Three filters, each dearer than the one before: the walk (``.gitignore``, virtual environments,
links); a search of the bytes for FSDP's words; and, if anything reaches FSDP1, a search of the
other files for what code does to a model (``relevance.py``). Most files end at the second. Only
what is left is ever parsed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fsdp_migrate.discovery import ignore_patterns, progress, project_paths
from fsdp_migrate.discovery.project_files import ProjectFiles
from fsdp_migrate.discovery.project_paths import PathProblem
from fsdp_migrate.discovery.walk import NOTEBOOK, Walk
from fsdp_migrate.syntax import spelled

# Every spelling by which FSDP1 is reached: the package, the class and its usual alias.
WORDS = (b"fsdp", b"FSDP", b"FullySharded")
TOOL_NAME = b"fsdp-migrate"  # begins the comments that this tool writes
MANY = 5_000  # files that are worth several processes


def find(
    paths: Sequence[Path],
    exclude: Sequence[str] = (),
    base: Path | None = None,
    *,
    jobs: int = 1,
    configurations: bool = False,
) -> ProjectFiles:
    """Read every Python file under ``paths`` that could matter, and the ``configurations`` if they
    are asked for.

    A file that is named itself is always taken. In directories, what git ignores or ``exclude``
    matches (patterns relative to ``base``) is left out. A link to a file in the same directory
    counts as that file; a link to a directory is not followed. A path that a link leads out of its
    project is not read.

    Raises:
        PathProblem: a path does not exist, or there is nothing to read under the paths.
    """
    absolute, refused = project_paths.accept(paths)
    parents = [p if p.is_dir() else p.parent for p in absolute]
    root = Path(os.path.commonpath(parents)) if parents else Path.cwd()
    trees = tuple(dict.fromkeys(map(project_paths.writable_tree, absolute)))
    given = tuple(path for path in absolute if path.is_dir())
    found = ProjectFiles(root, trees, given, unread=refused)
    walk = Walk(
        ignore_patterns.excluded_by_user(exclude),
        str(base or root),
        found.unread,
        configurations=configurations,
    )
    for path in absolute:
        walk.add(path)
    files = walk.files()
    found.configurations = walk.configurations
    found.seen = len(set(files) | set(map(str, found.configurations)))
    if absolute and not found.seen and not found.unread:
        listed = ", ".join(str(path) for path in paths)
        raise PathProblem(f"{listed}: no Python files here that git does not ignore")
    rest = _read_candidates(files, found, jobs)
    if found.candidates:
        from fsdp_migrate.discovery import relevance  # loaded only where something mentions FSDP

        relevance.classify(found, rest, jobs)
    else:
        found.library = rest
    return found


def of_text(data: bytes) -> ProjectFiles:
    """One file that is not on disk, shown as ``-``."""
    path = Path.cwd() / "-"
    found = ProjectFiles(path.parent, candidates={path: data}, seen=1)
    if TOOL_NAME in data:
        found.commented[path] = data
    from fsdp_migrate.discovery import relevance

    relevance.classify(found, [], 1)
    return found


def _read_candidates(files: Sequence[str], found: ProjectFiles, jobs: int) -> list[str]:
    """Fill ``found.candidates``; return the files that do not mention FSDP."""
    rest = []
    answers = _map(_contents_if_fsdp, files, jobs)
    for file, answer in zip(progress.through("reading", files), answers, strict=True):
        if answer is None:
            rest.append(file)
        elif isinstance(answer, bytes):
            found.candidates[Path(file)] = answer
            if TOOL_NAME in answer:
                found.commented[Path(file)] = answer
        else:
            found.unread.append((Path(file), answer))
    return rest


def _contents_if_fsdp(file: str) -> bytes | str | None:
    """The contents of a file that mentions FSDP, None of another, or why it cannot be read."""
    one, two, three = WORDS
    try:
        with open(file, "rb", buffering=0) as stream:
            data = stream.read()
    except OSError as error:
        return error.strerror or str(error)
    if one in data or two in data or three in data:
        return data
    text = spelled.unescaped(data) if file.endswith(NOTEBOOK) and b"\\u" in data else data
    try:
        text = spelled.names(text)
    except ValueError as error:
        return str(error)
    return data if one in text or two in text or three in text else None


def _map(
    function: Callable[[str], bytes | str | None], files: Sequence[str], jobs: int
) -> Iterable[bytes | str | None]:
    if jobs < 2 or len(files) < MANY:
        return map(function, files)
    from fsdp_migrate import workers

    answers = workers.each(function, files, jobs=jobs, least=MANY)
    return ("a process ended" if isinstance(a, workers.Crash) else a for a in answers)
