"""What git and the user leave out: the patterns of ignore files, and matching them."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import ConfigError

if TYPE_CHECKING:  # imported where there is something to ignore
    from pathspec import GitIgnoreSpec

MOST_STARS = 3  # in one part of a pattern: each more multiplies the time to match

Specs = tuple[tuple[str, "GitIgnoreSpec"], ...]


def add_ignore_file(specs: Specs, directory: str, file: str) -> Specs:
    """``specs`` with the patterns of an ignore file, which are relative to ``directory``.

    Like git, this ignores an ignore file that is a link.
    """
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):
            return specs
        with open(file, encoding="utf-8", errors="replace") as stream:
            spec = _spec(filter(_is_pattern, stream.read().split("\n")))
    except OSError:
        return specs
    return specs if spec is None else (*specs, (directory, spec))


def excluded_by_user(patterns: Sequence[str]) -> GitIgnoreSpec | None:
    """The user's own patterns.

    Raises:
        ConfigError: a pattern cannot be read.
    """
    wrong = [str(n) for n, pattern in enumerate(patterns, 1) if not _is_pattern(pattern)]
    if wrong:  # they are not quoted: the file may be no configuration of the user's
        raise ConfigError(
            f"exclude: pattern {', '.join(wrong)} of the list cannot be read, or has more than "
            f"{MOST_STARS} '*' in one part of its path"
        )
    return _spec(patterns)


def _is_pattern(line: str) -> bool:
    """Whether a line of an ignore file can be matched, and quickly."""
    from pathspec import GitIgnoreSpec

    parts = line.split("/")
    if max(parts.count("**"), *(part.count("*") for part in parts)) > MOST_STARS:
        return False
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error, OverflowError, RecursionError):
        return False
    return True


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec | None:
    """The patterns of an ignore file; None when there are none."""
    lines = list(patterns)
    if all(not line.strip() or line.startswith("#") for line in lines):
        return None
    from pathspec import GitIgnoreSpec

    return GitIgnoreSpec.from_lines(lines)


def is_ignored(path: str, specs: Specs, slash: str = "") -> bool:
    """Git's rule: the last pattern that matches decides, and inner files come after outer."""
    verdict = False
    for directory, spec in specs:
        result = spec.check_file(path[len(directory) + 1 :] + slash).include
        if result is not None:
            verdict = result
    return verdict


def specs_around(top: Path) -> Specs:
    """What the repository around ``top`` ignores; nothing if it ignores ``top`` itself."""
    repository = project_paths.git_root(top)
    if repository is None:
        return ()
    specs: Specs = ()
    # Git allows this one to be a link, and follows it anywhere.
    exclude = project_paths.real_path(repository / ".git" / "info" / "exclude")
    if exclude.is_relative_to(project_paths.real_path(repository)):
        specs = add_ignore_file(specs, str(repository), str(exclude))
    for directory in reversed(top.parents):
        if directory.is_relative_to(repository):
            specs = add_ignore_file(specs, str(directory), f"{directory}/.gitignore")
    within = [p for p in (top, *top.parents) if p != repository and p.is_relative_to(repository)]
    ignored = any(is_ignored(str(p), specs, "/") for p in within)
    return () if ignored else specs
