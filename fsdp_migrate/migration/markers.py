"""One marker for a cause, where a file has many names of which the same is to be said."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import Mark
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.syntax.trees import block_of

FEW = 3  # as many names have a marker each
LISTED = 8
CONTEXTS = (ast.With, ast.AsyncWith)


def said_together(decisions: Sequence[Decision]) -> dict[Mark, Mark]:
    """The markers of which others say the same, and what stands in their place: where a file has
    many names for a cause, or a statement more than one, it is one marker, where the first would
    stand."""
    found: dict[tuple[Module, str], list[Mark]] = {}
    for decision in decisions:
        if decision.outcome is Outcome.LEFT and not decision.guard.stands:
            for edit in decision.edits:
                if isinstance(edit, Mark) and edit.together:
                    found.setdefault((edit.module, edit.together), []).append(edit)
    result: dict[Mark, Mark] = {}
    for (module, _), marks in found.items():
        if len({mark.name for mark in marks}) > FEW:
            result |= _as_one(marks)
            continue
        beside: dict[ast.AST, list[Mark]] = {}
        for mark in marks:
            beside.setdefault(module.table.statement(mark.node), []).append(mark)
        for group in beside.values():
            result |= _as_one(group)
    return result


class Repeats:
    """Which markers say what the one above the statement in front of theirs says."""

    def __init__(self) -> None:
        self._said: set[tuple[ast.AST, str]] = set()

    def has(self, mark: Mark, *, left: bool) -> bool:
        """Whether it is such a marker; asked of all, in the order of a file.

        Of what is left only the same code says the same: the next run may not ask about the other.
        """
        table = mark.module.table
        statement = table.statement(mark.node)
        self._said.update({(statement, mark.sentence), (statement, mark.comment)})
        said = mark.comment if left else mark.sentence
        return any((each, said) in self._said for each in _in_front(statement, mark.module))


def _in_front(statement: ast.stmt, module: Module) -> Iterator[ast.stmt]:
    """The statement in front of one, through the contexts around both: what stands in one may be
    all that is left of it."""
    parent = module.table.parents[statement]
    block = block_of(parent, statement)
    at = block.index(statement)
    if at == 0 and isinstance(parent, CONTEXTS):
        yield from _in_front(parent, module)
    before = block[at - 1] if at else None
    while before is not None:
        yield before
        before = before.body[-1] if isinstance(before, CONTEXTS) else None


def _as_one(marks: Sequence[Mark]) -> dict[Mark, Mark]:
    """One marker for several, if they are about several names."""
    names = list(dict.fromkeys(mark.name for mark in marks))
    if len(names) < 2:
        return {}
    one = replace(marks[0], sentence=marks[0].together.format(names=_listed(names)))
    return dict.fromkeys(marks, one)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    last = f"{more} more below" if more > 0 else names[-1]
    shown = names[:LISTED] if more > 0 else names[:-1]
    return f"{', '.join(shown)} and {last}"
