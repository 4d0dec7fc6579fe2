"""One marker for a cause, where a file has many names of which the same is to be said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import Mark
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome

FEW = 3  # as many names have a marker each
LISTED = 8


def said_together(decisions: Sequence[Decision]) -> dict[tuple[Module, str], Mark]:
    """The marker of each file and cause that has many names: it stands where the first would."""
    found: dict[tuple[Module, str], list[Mark]] = {}
    for decision in decisions:
        if decision.outcome is Outcome.LEFT and not decision.guard.stands:
            for edit in decision.edits:
                if isinstance(edit, Mark) and edit.together:
                    found.setdefault((edit.module, edit.together), []).append(edit)
    result: dict[tuple[Module, str], Mark] = {}
    for cause, marks in found.items():
        names = list(dict.fromkeys(mark.name for mark in marks))
        if len(names) > FEW:
            sentence = marks[0].together.format(names=_listed(names))
            result[cause] = replace(marks[0], sentence=sentence)
    return result


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    last = f"{more} more below" if more > 0 else names[-1]
    shown = names[:LISTED] if more > 0 else names[:-1]
    return f"{', '.join(shown)} and {last}"
