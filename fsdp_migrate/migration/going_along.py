"""What goes along with a migration: imports that nothing uses, and code for older releases.

It does no harm where it is. Where nothing of a project is migrated it stays, and is not counted as
migrated; where FSDP1 is in nothing else, it goes, and the project is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.migration import dead_code
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Cause, Decision
from fsdp_migrate.planning.outcome import Outcome


def settle(decisions: Sequence[Decision], study: Study) -> list[Decision]:
    """``decisions``, where what goes along is left on the islands that migrate nothing."""
    others = [d for d in decisions if not _goes_along(d)]
    if all(d.outcome is not Outcome.LEFT for d in others):
        return list(decisions)
    island = study.project.island
    migrated = {
        island(d.site.module)
        for d in others
        if d.models and not d.kept and d.outcome is not Outcome.LEFT
    }
    return [
        _staying(d, study) if _goes_along(d) and island(d.site.module) not in migrated else d
        for d in decisions
    ]


def _goes_along(decision: Decision) -> bool:
    """Whether a decision is to take such code away, or says that older releases alone run it."""
    if decision.cause is Cause.OUTDATED:
        return True
    is_import = decision.site.construct.kind is ConstructKind.IMPORT
    return is_import and decision.outcome is not Outcome.LEFT


def _staying(decision: Decision, study: Study) -> Decision:
    if decision.outcome is Outcome.LEFT:
        return decision
    if decision.cause is Cause.OUTDATED:
        return dead_code.of(decision.site, study, stays=True)
    return replace(
        decision,
        outcome=Outcome.LEFT,
        message="nothing uses it: it goes with the migration, and nothing here is migrated",
        help="settle what holds the rest back, then run again",
        edits=(),
    )
