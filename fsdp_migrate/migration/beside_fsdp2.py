"""Models that the project shards with ``fully_shard`` itself, beside those of FSDP1.

``FSDP(net) if version == 1 else fully_shard(net)``: each gave its own kind of state, by
``state_dict()`` in one line. Migrated, both are FSDP2's, no class tells them apart, and that line
gives the kind that FSDP1's had.
"""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, Mark, ReplaceExpression
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences

STATES = frozenset({"state_dict", "load_state_dict"})
REVIEW = (
    "a model that this project gives fully_shard itself may come here as well: its state was "
    "sharded, and is of the kind now that FSDP1's models had; ask here what chose between the two"
)


def said(decision: Decision, study: Study) -> Decision:
    """A decision with the review of a state that may also be of a model of FSDP2's."""
    site = decision.site
    if decision.outcome is Outcome.LEFT or site.construct.attribute not in STATES:
        return decision
    edits = [e for e in decision.edits if not isinstance(e, Mark)]
    if not edits or any(map(_is_of_parts, edits)) or not _may_be_fsdp2s(decision, study):
        return decision
    help_ = sentences(decision.help, REVIEW) if decision.help else REVIEW
    mark = Mark(site.module, site.node, decision.code, sentences(help_))
    return replace(decision, outcome=Outcome.REVIEW, help=help_, edits=(*edits, mark))


def _is_of_parts(edit: Edit) -> bool:
    """Whether an edit writes what gives or takes a sharded state, as ``state_dict()`` does."""
    text = edit.code.preview() if isinstance(edit, ReplaceExpression) else ""
    return "et_model_state_dict(" in text and "options=" not in text


def _may_be_fsdp2s(decision: Decision, study: Study) -> bool:
    site = decision.site
    sharded = fully_sharded.sharded(study)
    if site.receiver is None or not sharded:
        return False
    return any(
        not study.narrowing.is_never_met(each.call, each.module, site.receiver, site.module)
        for value in study.values(site.receiver, site.module)
        for each in sharded.get(value, ())
    )
