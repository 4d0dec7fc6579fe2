"""Annotations in quotes: ``model: "FSDP"``."""

from __future__ import annotations

import ast

from fsdp_migrate.fsdp1.api import FSDP, PACKAGE, without_mark
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning import string_references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax import string_annotations

RULE = "FSDP404"
TOGETHER = "FSDP2 has none of {names}. Name what the annotated code takes now."


NEW_NAMES = {FSDP: "FSDPModule", "MixedPrecision": "MixedPrecisionPolicy"}
TYPES = {
    **{old: (PACKAGE, new) for old, new in NEW_NAMES.items()},
    "CPUOffload": (PACKAGE, "OffloadPolicy"),
    "ShardedGradScaler": ("torch.amp", "GradScaler"),
}


def decide_quoted_annotation(site: Site, study: Study) -> Decision:
    """An annotation in quotes: the names in it are replaced where all of them can be."""
    models = study.every_constructor
    text = str(site.string.value)
    found = [
        each
        for annotation in string_annotations.in_annotations(site.module.table)
        if annotation.string is site.string
        for each in string_references.references(annotation, study, site.module)
    ]
    others = [old for node, old in found if old not in TYPES or _deeper(node, old)]
    if others or not models or not text.isascii() or "\n" in text:
        missing = without_mark(others[0]) if others else ""
        reason = f"FSDP2 has no {missing}" if models and others else study.no_models
        left = study.left(
            site,
            RULE,
            reason or "the annotation is not plain text",
            "name what the annotated code takes now",
        )
        return left.with_others(missing, TOGETHER) if models and others else left
    proposal = study.proposal()
    for node, old in sorted(found, key=lambda item: -item[0].col_offset):
        package, new = TYPES[old]
        if isinstance(node, ast.Attribute) and package == PACKAGE:
            new = f"{ast.unparse(node.value)}.{new}"
        else:
            new = proposal.name(site.module, package, new, site.string)
        text = text[: node.col_offset] + new + text[node.end_col_offset :]
    quote = "'" if site.module.source.segment(site.string).endswith("'") else '"'
    proposal.replace(site.module, site.string, code("{t}", t=f"{quote}{text}{quote}"))
    return study.rewritten(site, RULE, text, proposal, models=models)


def _deeper(node: ast.expr, old: str) -> bool:
    """``torch.distributed.fsdp.api.MixedPrecision``: FSDP2's names are not in FSDP1's modules."""
    if TYPES[old][0] != PACKAGE:
        return False
    owner = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
    return owner.startswith("torch.") and owner != PACKAGE
