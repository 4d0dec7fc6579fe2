"""Leave names that may be another library's class, or the project's own."""

import ast
from collections.abc import Sequence
from dataclasses import replace

from fsdp_migrate.analysis.name_resolution import Lead
from fsdp_migrate.fsdp1.construct import ConstructKind
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning import string_references
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax import string_annotations

RULE = Rule(code="FSDP105", name="look_alikes", handles=("look-alike",), since="2.4")


def decide(site: Site, study: Study) -> Decision:
    named, others = _doubtful(site, study)
    makes = study.constructors.get(site.node)
    is_type = (
        site.construct == string_references.QUOTED
        or site.construct.kind is ConstructKind.ANNOTATION
    )
    models = [makes] if makes is not None else study.reached_from(site.module)
    words = " or ".join(dict.fromkeys(map(str, others)))
    reason = f"{named} may also be {words} here"
    left = study.left(
        site,
        RULE.code,
        reason,
        "give the two classes names of their own, or import torch's in the branch that uses it",
        models=() if is_type else models,
        quiet=makes is None and not is_type,
    )
    # The marker says no line: it must stay true when lines move.
    return replace(left, message=f"{reason} ({_lines(others)})")


def _doubtful(site: Site, study: Study) -> tuple[str, list[Lead]]:
    """The reference as it is written, and what else it may be."""
    nodes = [site.reference]
    for each in string_annotations.in_annotations(site.module.table):
        if each.string is site.node:
            nodes += [node for node, _ in string_references.references(each, study, site.module)]
    for node in nodes:
        others = study.project.look_alikes(node, site.module)
        if others:
            return ast.unparse(node), others
    raise AssertionError(f"{site.construct} is no look-alike's")


def _lines(others: Sequence[Lead]) -> str:
    """Where the other definitions stand."""
    nodes = [lead.binding.node for lead in others if lead.binding is not None]
    lines = sorted({getattr(node, "lineno", 0) for node in nodes})
    return f"line {', '.join(map(str, lines))}" if lines else "by a star import"
