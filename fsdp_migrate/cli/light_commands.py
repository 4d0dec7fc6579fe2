"""Commands that must answer at once: nothing heavy is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate import shown
from fsdp_migrate.cli import console
from fsdp_migrate.errors import InputError

GOOD, SEE, BAD = 0, 1, 2


def explain(topic: str | None, *, trust_rules: bool = False) -> int:
    """A rule's page, the table of rules, or what would happen at one place."""
    from fsdp_migrate.cli import explain as pages

    place = pages.place(topic) if topic is not None else None
    if place is not None:
        from fsdp_migrate.cli import trust

        start = Path.cwd() / place[0]
        return trust.command(start, trust_rules, lambda: _place(*place, trust_rules=trust_rules))
    try:
        directories = _rule_paths()
    except InputError as error:
        console.problem(str(error))
        return BAD
    if topic is None:
        console.out(pages.table(directories))
        return GOOD
    try:
        console.out(pages.page(topic, directories))
    except pages.UnknownTopic as error:
        console.problem(str(error))
        return BAD
    return GOOD


def _rule_paths() -> Sequence[Path]:
    """The project's own rule directories, read without the weight of the whole configuration.

    Raises:
        ConfigError: one leads out of the project.
    """
    from fsdp_migrate.discovery import project_paths
    from fsdp_migrate.planning import pages

    for directory in (Path.cwd(), *Path.cwd().parents):
        pyproject = directory / "pyproject.toml"
        if pyproject.is_file():
            from fsdp_migrate import toml

            try:
                data = toml.loads(project_paths.read_regular_file(pyproject))
                names = list(map(str, data["tool"]["fsdp-migrate"]["rule-paths"]))
            except (OSError, ValueError, KeyError, TypeError):
                return []  # the commands that depend on it complain
            origin = "pyproject.toml: [tool.fsdp-migrate]"
            return pages.own_directories(directory, names, origin)
        if (directory / ".git").exists():
            break
    return []


def _place(path: Path, cell: int, line: int, *, trust_rules: bool) -> int:
    """Every site of a line with the pages of their rules."""
    from fsdp_migrate import report
    from fsdp_migrate.cli import explain as pages
    from fsdp_migrate.cli import session
    from fsdp_migrate.planning.outcome import place
    from fsdp_migrate.report import text

    try:
        run = session.run([path], edit=False, trust_rules=trust_rules)
    except InputError as error:
        console.problem(str(error))
        return BAD
    found = [e for e in report.events(run.result) if (e.cell, e.line) == (cell, line)]
    if not found:
        console.note(f"{place(shown.path(str(path)), line, cell)}: nothing of FSDP1 here")
        return GOOD
    for event in report.printable(found):
        console.out("\n".join(text.block(event)) + "\n\n")
    for code in dict.fromkeys(e.code for e in found):
        try:
            console.out(pages.page(code, run.config.rule_paths))
        except pages.UnknownTopic:
            continue  # a code without a page: held back with another site
    return SEE


def undo(paths: Sequence[Path]) -> int:
    """Put the last rewrite under the first of ``paths`` back; the others are trees that it may
    have written in too."""
    import os

    from fsdp_migrate.cli import config
    from fsdp_migrate.discovery import project_paths
    from fsdp_migrate.errors import InputError
    from fsdp_migrate.rewriting import journal, write

    try:
        taken, refused = project_paths.accept(paths)
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
