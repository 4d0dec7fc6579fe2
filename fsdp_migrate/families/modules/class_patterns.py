"""Patterns of classes: ``case FullyShardedDataParallel():`` is an ``isinstance`` test."""

from __future__ import annotations

import ast

from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision

RULE = "FSDP404"


def decide_class_pattern(site: Site, study: Study) -> Decision:
    table = site.module.table
    pattern = table.parents[site.node]
    match = next(p for p in table.ancestors(pattern) if isinstance(p, ast.Match))
    models = study.models_of_static(match.subject, site.module).constructors
    if not models:
        return study.left(site, RULE, study.no_models, study.no_models_help)
    reason, quiet = "", True
    if not isinstance(pattern, ast.MatchClass):
        reason = "classes are compared, and an FSDP2 model is of another class"
        help_ = "match the model itself, and write case FSDPModule():"
    elif own := [name for name in pattern.kwd_attrs if name in fsdp1.METHODS | fsdp1.FIELDS]:
        reason = f"an FSDP2 model has no {own[0]}, and would not match"
        help_ = "match FSDPModule() by itself, and use the model"
    elif any(_asks_fsdp2(case.pattern, site, study) for case in match.cases):
        reason, quiet = "there is a case for FSDP2 models beside this, which is theirs now", False
        help_ = "delete this case, once the other does all that they need"
    if reason:
        return study.left(site, RULE, reason, help_, models=models, quiet=quiet)
    proposal = study.proposal()
    name = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
    proposal.replace(site.module, site.mention, code("{n}", n=name))
    return study.rewritten(site, RULE, "FSDPModule", proposal, models=models)


def _asks_fsdp2(pattern: ast.pattern, site: Site, study: Study) -> bool:
    """Whether a pattern asks for FSDP2's models."""
    return any(
        isinstance(part, ast.MatchClass)
        and any(map(fsdp1.is_fsdp2_class, study.external(part.cls, site.module)))
        for part in ast.walk(pattern)
    )
