"""``rewrite --review``: what is taken of a run, change by change.

Changes belong to *units* (``migration/units.py``). A unit is taken when every change of it was, so
that no answer leaves a model half migrated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.fsdp1.site import Key
from fsdp_migrate.migration.units import Unit
from fsdp_migrate.planning.result import Result
from fsdp_migrate.rewriting import patch

ANSWERS = "y,n,a,m,q,?"
HELP = """\
y - take this change
n - leave it, and with it the whole migration: a model is migrated whole or not at all
a - take this change and the rest of this file's in this migration
m - take this change and the rest of this migration
q - quit: take the migrations that were answered in full, leave this one and the others
? - this help
Changes are taken as they are shown; edit the files afterwards. Ctrl-C writes nothing."""

Show = Callable[[bytes], None]
Say = Callable[[str], None]
Ask = Callable[[str], str]
Again = Callable[[frozenset[Key]], Result]


@dataclass(frozen=True)
class Change:
    """One hunk of a file."""

    path: Path
    text: bytes


def ask_about_changes(
    asked: Sequence[Unit],
    again: Again,
    before: Mapping[Path, bytes],
    *,
    display: Callable[[Path], str],
    show: Show,
    say: Say,
    ask: Ask,
) -> frozenset[Key]:
    """Ask about every change of every unit; the decisions that were refused.

    Raises:
        EOFError: there are no more answers.
    """
    taken: list[Unit] = []
    everything = frozenset(key for unit in asked for key in unit.keys)
    base: Mapping[Path, bytes] = {}
    for number, unit in enumerate(asked, 1):
        refused = everything - _keys([*taken, unit])
        after = again(refused).changes
        changes = list(_changes({**before, **base}, after))
        added = [p for p in after if p not in before and p not in base]
        paths = {c.path for c in changes}
        if changes:
            say(
                f"{number} of {len(asked)}: {unit.title} ({_count(changes, 'change')} in "
                f"{_count(paths, 'file')})"
            )
        for path in added:
            say(f"adds {display(path)}, the functions that it needs")
        answer = _answers(changes, display, show=show, say=say, ask=ask)
        if answer == "y":
            taken.append(unit)
            base = after
            continue
        if changes:
            whole = ", for it is taken whole or not at all" if len(changes) > 1 else ""
            say(f"left as it is{whole}: {unit.title}")
        if answer == "q":
            break
    return everything - _keys(taken)


def _answers(
    changes: Sequence[Change], display: Callable[[Path], str], *, show: Show, say: Say, ask: Ask
) -> str:
    """``y`` when every change was taken, ``n`` or ``q`` when one was not."""
    whole: Path | None = None
    for number, change in enumerate(changes, 1):
        if change.path == whole:
            continue
        name = display(change.path)
        show(f"--- a/{name}\n+++ b/{name}\n".encode() + change.text)
        while True:
            question = f"({number}/{len(changes)}) take this change [{ANSWERS}]? "
            answer = ask(question).strip().lower()[:1]
            if answer in {"y", "n", "a", "m", "q"}:
                break
            say(HELP)
        if answer in {"n", "q"}:
            return answer
        if answer == "m":
            return "y"
        whole = change.path if answer == "a" else None
    return "y"


def _changes(before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> Iterator[Change]:
    """The hunks of files that exist; ``before`` holds what was taken already."""
    for path in sorted(after):
        if path in before:
            for text in hunks(before[path], after[path]):
                yield Change(path, text)


def hunks(old: bytes, new: bytes) -> Iterator[bytes]:
    """Each ``@@`` part of a diff as one text."""
    found: list[bytes] = []
    for line in patch.hunks(old, new):
        if line.startswith(b"@@ ") and found:
            yield b"".join(found)
            found = []
        found.append(line)
    if found:
        yield b"".join(found)


def _keys(taken: Collection[Unit]) -> frozenset[Key]:
    return frozenset(key for unit in taken for key in unit.keys)


def _count(things: Collection[object], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"
