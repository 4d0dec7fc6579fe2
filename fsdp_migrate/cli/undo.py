"""What ``undo`` does: put the last rewrite back."""

from __future__ import annotations

import os
from pathlib import Path

from fsdp_migrate.cli import config, console
from fsdp_migrate.cli.exit_codes import BAD, GOOD
from fsdp_migrate.cli.options import Undo
from fsdp_migrate.discovery import project_paths
from fsdp_migrate.errors import InputError
from fsdp_migrate.rewriting import journal, write


def undo(asked: Undo) -> int:
    """Put the last rewrite under the first path back, or only the files among the paths; other
    directories are trees that it may have written in too."""
    try:
        gone = [path for path in asked.paths if not os.path.lexists(path)]
        there = [path for path in asked.paths if path not in gone]
        taken, refused = project_paths.accept(there or [Path()])
        for path, reason in refused:
            raise project_paths.PathProblem(f"{config.shown(path)}: {reason}")
        root = config.project_root(taken[0])
        files = {path.resolve() for path in taken if path.is_file()}
        files |= {Path(os.path.abspath(path)) for path in gone}
        trees = [project_paths.writable_tree(path) for path in taken[1:] if path.is_dir()]
        undone = write.undo(root, trees, only=files, force=asked.force)
    except (InputError, OSError) as error:
        console.problem(str(error))
        return BAD
    if undone is None and gone:
        console.problem(f"{config.shown(gone[0])}: does not exist")
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
    listed = ", ".join(config.shown(root / name) for name in undone.conflicts)
    put_back = bool(undone.restored or undone.removed)
    if undone.conflicts and put_back:
        console.note(f"lost: what was changed since the rewrite in {listed}")
    elif undone.conflicts:
        console.problem(
            f"{listed}: changed since the rewrite, so nothing was put back; with --force it is, "
            "and these changes are lost"
        )
    if undone.rest:
        console.note(f"{undone.rest} more of that rewrite: fsdp-migrate undo puts them back")
    return BAD if undone.conflicts and not put_back else GOOD
