"""Hold migrations back: nothing is migrated by half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsdp_migrate.planning.model import Cause, Constructor, Decision, Guard
from fsdp_migrate.planning.outcome import Outcome, place
from fsdp_migrate.syntax import suppressions

HELD = "FSDP190"


def heeded(decision: Decision) -> Decision:
    """``decision``, unless a comment says that its site is to stay as it is."""
    site, codes = decision.site, filter(None, (decision.code, decision.rule))
    found = suppressions.find(site.node, site.module.source, site.module.table, *codes)
    return decision if found is None else to_stay(decision, found)


def to_stay(decision: Decision, by: suppressions.Ignored) -> Decision:
    """*Left* on purpose. What would be rewritten may go wrong on a migrated model if it is not;
    what stays as it is anyway holds nothing back."""
    reason = by.ignore.reason
    return replace(
        decision,
        outcome=Outcome.LEFT,
        message=f"stays on purpose: {reason}" if reason else "stays on purpose",
        help="",
        edits=(),
        guard=Guard(problem=decision.guard.problem),
        models=frozenset() if decision.kept else decision.models,
        quiet=decision.quiet or (decision.outcome is not Outcome.LEFT and not decision.kept),
        ignored=by,
    )


def _with_ignored(decisions: Sequence[Decision]) -> list[Decision]:
    """What stays FSDP1 because its model does, whose constructor is ignored, and what ignores that
    it is held back."""
    models = {
        constructor: decision.ignored
        for decision in decisions
        if decision.ignored is not None
        for constructor in decision.models
        if decision.site.node is constructor.node
    }
    result = []
    for decision in decisions:
        by = None
        if decision.held and decision.ignored is None:
            site = decision.site
            by = suppressions.find(site.node, site.module.source, site.module.table, HELD)
        if by is not None:
            result.append(to_stay(decision, by))
        elif (
            decision.outcome is Outcome.LEFT
            and decision.ignored is None
            and decision.models
            and decision.models <= models.keys()
        ):
            by = next(models[c] for c in decision.models)
            message = f"stays FSDP1 with its model, as {by.place} says"
            result.append(replace(to_stay(decision, by), message=message))
        else:
            result.append(decision)
    return result


def held(decision: Decision, *causes: Decision) -> Decision:
    """``decision`` turned into *left* because of ``causes``, of which the first is named."""
    cause = causes[0]
    message, help_ = cause.message, cause.help
    if not cause.held:
        cell, line, _ = cause.site.place
        where = place(cause.site.module.display, line, cell)
        message, help_ = f"held back with {where} ({cause.code})", f"settle {where}, then run again"
        if cause.ignored is not None:
            message = f"held back with {where} ({cause.code}), which stays on purpose"
            help_ = f"leave it as well, or take back what {cause.ignored.place} says"
    return replace(
        decision,
        code=HELD,
        rule=decision.rule or decision.code,
        outcome=Outcome.LEFT,
        message=message,
        help=help_,
        edits=(),
        cause=Cause.HELD,
        quiet=False,
        held_by=causes,
    )


def hold_back(decisions: Sequence[Decision]) -> list[Decision]:
    """Hold every migration back that contains a blocking site.

    Blocking: a left constructor (its model stays FSDP1, so everything done to it must too), and a
    left site that would be quietly wrong on a migrated model. Migrations that share a site, such
    as one precision policy for two models, stand and fall together. A site with a guard blocks
    nothing, and has its guard only where nothing else does.
    """
    group = groups(decisions)
    blocked: dict[Constructor, list[Decision]] = {}
    # What is ignored is named as the cause only where there is no other.
    for decision in sorted(decisions, key=lambda d: d.ignored is not None):
        if decision.outcome is not Outcome.LEFT:
            continue
        is_constructor = decision.site.construct.is_constructor or any(
            decision.site.node is constructor.defined_by for constructor in decision.models
        )
        if is_constructor or (decision.quiet and not decision.guard.edits):
            for stands_for in dict.fromkeys(group[c] for c in decision.models):
                blocked.setdefault(stands_for, []).append(decision)
    result = []
    for decision in decisions:
        migrations = dict.fromkeys(group[c] for c in decision.models)
        causes = [cause for each in migrations for cause in blocked.get(each, ())]
        keep = not causes or decision.outcome is Outcome.LEFT
        if decision.guard.edits:
            result.append(replace(decision, guard=replace(decision.guard, stands=not causes)))
        elif keep:
            result.append(replace(decision, held_by=tuple(causes)) if decision.held else decision)
        else:
            result.append(held(decision, *causes))
    return _with_ignored(result)


def groups(decisions: Sequence[Decision]) -> dict[Constructor, Constructor]:
    """The constructor that stands for each one's migration: those that occur in one decision
    together have the same, as have those of a model and of its parts (union-find). What may belong
    to any model joins none."""
    parent: dict[Constructor, Constructor] = {}

    def find(item: Constructor) -> Constructor:
        parent.setdefault(item, item)
        while parent[item] is not item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for decision in decisions:
        members = [] if decision.site.doubt else list(decision.models)
        for other in members[:1] + members[1:]:
            parent[find(other)] = find(members[0])
    for part in list(parent):
        for whole in part.wholes:
            parent[find(part)] = find(whole)
    return {item: find(item) for item in list(parent)}
