"""What holds migrations back, and how much of each goes when that is settled."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from fsdp_migrate.migration import partial
from fsdp_migrate.migration.holding import groups
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.outcome import place
from fsdp_migrate.planning.result import HeldBack


def held_back(decisions: Sequence[Decision], study: Study) -> list[HeldBack]:
    """The sites that are held back, by all that they wait for; those first that are most for the
    fewest blockers."""
    sites: dict[frozenset[ast.AST], int] = {}
    blockers: dict[ast.AST, Decision] = {}
    for decision in decisions:
        if decision.held and decision.ignored is None:
            blockers |= {by.site.reference: by for by in decision.held_by}
            together = frozenset(by.site.reference for by in decision.held_by)
            sites[together] = sites.get(together, 0) + 1
    found = list(blockers.values())
    stoppable = {
        by.site.reference
        for by, guarded in zip(found, partial.guarded(found, study), strict=True)
        if guarded.guard.edits and not by.guard.problem
    }
    result = []
    group = groups(decisions)
    for together, number in sites.items():
        listed = sorted((blockers[by] for by in together), key=_order)
        places = tuple(dict.fromkeys(map(_place, listed)))
        links = tuple(dict.fromkeys(_links(together, decisions, group)))
        result.append(HeldBack(number, places, together <= stoppable, links))
    return sorted(result, key=lambda h: (len(h.places) / h.sites, h.places))


def _links(
    together: frozenset[ast.AST],
    decisions: Sequence[Decision],
    group: Mapping[Constructor, Constructor],
) -> Iterator[str]:
    """Where several models that are held back have something in common: they are migrated
    together."""
    waiting = {
        group[c]
        for d in decisions
        if d.held and together == {by.site.reference for by in d.held_by}
        for c in d.models
        if c in group
    }
    for decision in sorted(decisions, key=_order):
        own = {group[c] for c in decision.models if c in group}
        if len(decision.models) > 1 and not decision.site.doubt and own & waiting:
            yield _place(decision)


def _order(decision: Decision) -> tuple[object, ...]:
    return decision.site.module.display, decision.site.place


def _place(decision: Decision) -> str:
    cell, line, _ = decision.site.place
    return place(decision.site.module.display, line, cell)
