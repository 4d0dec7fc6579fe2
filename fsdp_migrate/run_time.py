"""Constructors in their run-time form: ``shard`` of the support module takes FSDP1's arguments.

The form for what the code does not tell: keyword arguments built elsewhere, policies from outside,
calls where no statements can stand. ``fully_shard`` written out is preferred where it can be.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from packaging.version import Version

from fsdp_migrate import fsdp1, vocabulary
from fsdp_migrate.proposal import code
from fsdp_migrate.roles import Role, role
from fsdp_migrate.sharding import Constructor
from fsdp_migrate.sites import Site
from fsdp_migrate.study import Decision, Study

FUNCTION = "shard"
RULE = "FSDP101"
UNSURE = (
    "if this is a part of a model that is sharded later, pass is_root=False: only roots cast "
    "their inputs"
)


def choose(study: Study) -> frozenset[ast.AST]:
    """The calls to write in the run-time form, given a study that has written out what it could.

    Those that could not be written out, and those that share a policy or a setting with others: a
    value has one form in the whole project.
    """
    failed = {c for c in study.unwritten if not c.is_wrong}
    if not failed:
        return frozenset()
    sharing = {
        constructor
        for origin, conversion in study.conversions.items()
        for constructor in conversion.constructors
        if not _stands_in(origin, constructor)
    }
    return frozenset(c.call for c in failed | sharing)


def _stands_in(node: ast.AST, constructor: Constructor) -> bool:
    table = constructor.module.table
    return node in table.parents and any(p is constructor.call for p in table.ancestors(node))


def construct(site: Site, study: Study) -> list[Decision]:
    """Decide a constructor, or a partial of it, together with its arguments."""
    constructor = study.constructors[site.node]
    models = frozenset({constructor})
    proposal = study.proposal()
    name = proposal.support(site.module, FUNCTION, site.reference)
    assert isinstance(site.reference, ast.expr)
    proposal.replace(site.module, site.reference, code("{n}", n=name))
    place = role(constructor, study)
    if place is Role.PART:
        proposal.add_keyword(site.module, constructor.call, "is_root", code("False"))
    may_cast = constructor.is_open or constructor.has("mixed_precision")
    decisions = [
        study.rewritten(
            site,
            RULE,
            "shard takes the same arguments",
            proposal,
            models=models,
            review=UNSURE if place is Role.UNKNOWN and may_cast else "",
        )
    ]
    for argument, node in constructor.nodes().items():
        if argument == "module":
            continue
        assert isinstance(node, (ast.expr, ast.keyword))
        if any(map(fsdp1.canonical, study.external(constructor.arguments[argument], site.module))):
            continue  # FSDP1's own name, passed by itself: a site of its own
        part = Site(f"{fsdp1.FSDP}({argument}=)", site.module, node, node)
        rule = study.registry.find(part.construct)
        if rule is not None and Version(rule.rule.since) > study.target:
            decisions.append(study.too_new(part, rule, models=models))
            continue
        decisions.append(
            study.rewritten(part, rule.code if rule else RULE, "shard takes it", models=models)
        )
    return decisions


def unknown_states(decisions: Iterable[Decision]) -> bool:
    """Whether state dicts were left whose kind only the running program knows."""
    return any(d.unknown_state for d in decisions)


def settings(site: Site, study: Study) -> Decision | None:
    """Decide a mention of a setting or policy that constructors in the run-time form may get."""
    name = vocabulary.name_of(site.construct)
    if not study.run_time or site.node in study.conversions:
        return None  # of a constructor that is written out
    if site.construct.startswith("import("):
        return None  # nothing in the file uses it
    models = study.constructors.values()
    if name in fsdp1.POLICIES - {"wrap", "enable_wrap"}:
        rule = study.registry.find(name)
        if rule is None:
            return None
        return study.rewritten(site, rule.code, "kept: shard asks it as FSDP1 did", models=models)
    if name not in vocabulary.SETTINGS:
        return None
    if name == "MixedPrecision" and _keeps_low_precision(site, study):
        return study.left(
            site,
            vocabulary.SETTINGS[name],
            "keep_low_precision_grads=True has no counterpart in FSDP2",
            "gradients are always in the original dtype: drop the setting",
            models=models,
            quiet=True,
        )
    return vocabulary.keep(site, name, study, vocabulary.SETTINGS[name])


def _keeps_low_precision(site: Site, study: Study) -> bool:
    if not isinstance(site.node, ast.Call):
        return False
    for keyword in site.node.keywords:
        if keyword.arg == "keep_low_precision_grads":
            constant = study.literal(keyword.value, site.module)
            return constant is not None and bool(constant.value)
    return False
