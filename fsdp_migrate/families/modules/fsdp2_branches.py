"""Branches that a project has for FSDP2 models, beside those for FSDP1's."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import replace

from fsdp_migrate.families.wrapping.offloading import may_offload
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.branches import Branch
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP404"


def decide_branch(branch: Branch, site: Site, study: Study) -> Decision:
    """Migrated models take the branch that the project has for FSDP2."""
    models = study.every_constructor
    proposal = study.proposal()
    if branch.head is branch.node and not branch.node.orelse:
        proposal.delete(site.module, branch.node)
    else:
        proposal.drop_branch(site.module, branch.node)
    taken = branch.taken or branch.head
    proposal.mark(site.module, taken.test, RULE, sentences(TAKES_OTHER))
    decision = study.rewritten(site, RULE, "the branch for FSDP2 is left", proposal, models=models)
    return replace(decision, outcome=Outcome.REVIEW, help=TAKES_OTHER)


def decide_version_test(site: Site, study: Study) -> Decision:
    """No model is of the version that the project has for FSDP1's."""
    models = study.every_constructor
    branch = next((b for b in study.branches if b.asks is site.node), None)
    if branch is None:  # it builds models
        return study.left(
            site,
            RULE,
            "models are wrapped where the model is asked for its version of FSDP",
            "wrap them elsewhere, and run again",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    if branch.rest:
        for statement in branch.rest:
            proposal.delete(site.module, statement)
    elif branch.head is branch.node and not branch.node.orelse:
        proposal.delete(site.module, branch.node)
    else:
        proposal.drop_branch(site.module, branch.node)
    gone = branch.rest or branch.node.body
    spares = _spares_offloaded(gone) and any(may_offload(each, study) for each in models)
    if spares:
        proposal.mark(site.module, branch.head.test, RULE, sentences(OFFLOADED))
    decision = study.rewritten(
        site, RULE, "no model is of FSDP1's version any more", proposal, models=models
    )
    return replace(decision, outcome=Outcome.REVIEW, help=OFFLOADED) if spares else decision


def _spares_offloaded(statements: Iterable[ast.stmt]) -> bool:
    """Whether code asks FSDP1's handles which of them are offloaded."""
    nodes = (node for statement in statements for node in walk(statement))
    return any(isinstance(node, ast.Attribute) and node.attr == "_offload_params" for node in nodes)


OFFLOADED = (
    "what is offloaded to the CPU was left alone by FSDP1's code, which is gone: FSDP2 refuses it "
    "on a device, so that the branch for FSDP2, which is taken now, must leave it alone as well"
)
TAKES_OTHER = "models that were FSDP1 take the branch for FSDP2 now: see that it does all they need"
