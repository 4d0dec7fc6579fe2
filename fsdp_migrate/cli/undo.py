"""What ``undo`` does: put the last rewrite back."""

from __future__ import annotations

import os

from fsdp_migrate.cli import config, console
from fsdp_migrate.cli.exit_codes import BAD, GOOD
from fsdp_migrate.cli.options import Undo
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError
from fsdp_migrate.rewriting import journal, write


def undo(asked: Undo) -> int:
    """Put the last rewrite under the first path back; the other paths are trees that it may have
    written in too."""
    try:
        taken, refused = project_paths.accept(asked.paths)
        for path, reason in refused:
            raise project_paths.PathProblem(f"{config.shown(path)}: {reason}")
        root = config.project_root(taken[0])
        undone = write.undo(root, [project_paths.writable_tree(path) for path in taken[1:]])
    except (InputError, OSError) as error:
        console.problem(str(error))
        return BAD
    if undone is None:
        console.problem(
            f"{root}: no rewrite to undo; one of several projects is kept with the first"
        )
        if os.path.lexists(root / journal.INSIDE):
            inside = config.shown(root / journal.INSIDE)
            console.problem(f"{inside}: a journal inside the tree is not trusted and was not used")
        return BAD
    for name in undone.restored:
        console.out(f"restored {config.shown(root / name)}")
    for name in undone.removed:
        console.out(f"removed {config.shown(root / name)}")
    if undone.conflicts:
        listed = ", ".join(config.shown(root / name) for name in undone.conflicts)
        console.problem(f"{listed}: changed since the rewrite, so nothing was put back")
    return BAD if undone.conflicts else GOOD
