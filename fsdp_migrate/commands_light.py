"""Commands that must answer at once: nothing heavy is imported here."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate import ui

GOOD, SEE, BAD = 0, 1, 2


def explain(topic: str | None) -> int:
    """A rule's page, the table of rules, or what would happen at one place."""
    from fsdp_migrate import explain as pages

    directories = _rule_paths()
    if topic is None:
        ui.out(pages.table(directories))
        return GOOD
    place = pages.place(topic)
    if place is not None:
        return _place(*place)
    try:
        ui.out(pages.page(topic, directories))
    except pages.UnknownTopic as error:
        ui.problem(str(error))
        return BAD
    return GOOD


def _rule_paths() -> list[Path]:
    """The user's own rule directories, read without the weight of the whole configuration."""
    for directory in (Path.cwd(), *Path.cwd().parents):
        pyproject = directory / "pyproject.toml"
        if pyproject.is_file():
            import tomllib

            try:
                data = tomllib.loads(pyproject.read_text(encoding="utf-8"))
                return [directory / p for p in data["tool"]["fsdp-migrate"]["rule-paths"]]
            except (OSError, ValueError, KeyError, TypeError):
                return []  # the commands that depend on it complain
        if (directory / ".git").exists():
            break
    return []


def _place(path: Path, cell: int, line: int) -> int:
    """Every site of a line with the pages of their rules."""
    from fsdp_migrate import explain as pages
    from fsdp_migrate import report, session
    from fsdp_migrate.errors import InputError
    from fsdp_migrate.planning.outcome import place
    from fsdp_migrate.report import text

    try:
        run = session.run([path], edit=False)
    except InputError as error:
        ui.problem(str(error))
        return BAD
    found = [e for e in report.events(run.result) if (e.cell, e.line) == (cell, line)]
    if not found:
        ui.note(f"{place(str(path), line, cell)}: nothing of FSDP1 here")
        return GOOD
    for event in found:
        ui.out("\n".join(text.block(event)) + "\n\n")
    for code in dict.fromkeys(e.code for e in found):
        try:
            ui.out(pages.page(code))
        except pages.UnknownTopic:
            continue  # a code without a page: held back with another site
    return SEE


def undo(path: Path) -> int:
    """Put the last rewrite under ``path`` back."""
    from fsdp_migrate import config, write

    if not path.exists():
        ui.problem(f"{path}: does not exist")
        return BAD
    root = config.project_root(path.absolute())
    try:
        undone = write.undo(root)
    except (write.WriteError, OSError) as error:
        ui.problem(str(error))
        return BAD
    if undone is None:
        ui.problem(f"{root}: no rewrite to undo")
        return BAD
    for name in undone.restored:
        ui.out(f"restored {config.shown(root / name)}")
    for name in undone.removed:
        ui.out(f"removed {config.shown(root / name)}")
    if undone.conflicts:
        listed = ", ".join(config.shown(root / name) for name in undone.conflicts)
        ui.problem(f"{listed}: changed since the rewrite, so nothing was put back")
    return BAD if undone.conflicts else GOOD
