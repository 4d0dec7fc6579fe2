"""Which files have changes that git does not keep."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fsdp_migrate.cli import console
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError

# Each changed file in one entry; submodules are repositories of their own.
_STATUS = (
    *("status", "--porcelain", "-z", "--untracked-files=no", "--no-renames"),
    "--ignore-submodules=all",
)


def require_committed(paths: Sequence[Path], display: Callable[[Path], str]) -> None:
    """
    Raises:
        InputError: files have changes that git does not keep, or git cannot say.
    """
    dirty = uncommitted(paths)
    if dirty:
        listed = ", ".join(map(display, dirty[:3]))
        more = f" and {len(dirty) - 3} more" if len(dirty) > 3 else ""
        raise InputError(f"uncommitted changes in {listed}{more}: commit them, or --allow-dirty")


def uncommitted(paths: Sequence[Path]) -> list[Path]:
    """Those of ``paths`` that git tracks and that have uncommitted changes.

    Raises:
        InputError: git cannot say.
    """
    from fsdp_migrate import git

    found: list[Path] = []
    by_root: dict[Path, list[Path]] = {}
    for path in paths:
        root = project_paths.git_root(path.parent)
        while root is not None and not git.is_repository(root):
            root = project_paths.git_root(root.parent) if root != root.parent else None
        if root is not None:
            by_root.setdefault(root, []).append(path)
    for root, members in by_root.items():
        try:
            changed = _changed(root, {os.path.realpath(path) for path in members})
        except git.NoGitError:
            console.note("note: there is no git, so nobody looked for uncommitted changes")
            break
        except git.GitError as error:
            raise InputError(
                f"git cannot say whether the files have uncommitted changes: {error}; "
                "--allow-dirty rewrites them all the same"
            ) from error
        found += [p for p in members if os.path.realpath(p) in changed]
    return found


def _changed(root: Path, among: set[str]) -> set[str]:
    """Where files with uncommitted changes really are; of those that git was told not to look at,
    the ones in ``among``."""
    from fsdp_migrate import git

    answer = git.ask(root, *_STATUS)
    names = [os.fsdecode(entry[3:]) for entry in answer.split(b"\0") if entry]
    changed = {os.path.realpath(root / name) for name in names}
    for entry in git.ask(root, "ls-files", "--stage", "-v", "-z").split(b"\0")[:-1]:
        told, _, name = entry.partition(b"\t")
        flag, _, digest, _ = told.split()
        path = os.path.realpath(root / os.fsdecode(name))
        # Lower case: assumed to be unchanged; S: not in the work tree.
        if (flag.islower() or flag == b"S") and path in among - changed:
            held = git.ask(root, "hash-object", "--", os.fsdecode(name)).strip()
            if held != digest:
                changed.add(path)
    return changed
