"""Drop FSDP1 names that are imported and never used."""

import ast
from dataclasses import replace

from fsdp_migrate.analysis import executed_files
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Constant
from fsdp_migrate.families.names import bound_anew
from fsdp_migrate.fsdp1.references import promised
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax import evaluated_text, string_annotations

RULE = Rule(code="FSDP100", name="imports", handles=("import",), since="2.4")


def decide(site: Site, study: Study) -> Decision:
    name = site.alias.asname or site.alias.name
    statement = site.module.table.parents[site.alias]
    assert isinstance(statement, (ast.Import, ast.ImportFrom))
    asked_for = name in study.project.asked_for(site.module)
    commented = name in string_annotations.in_type_comments(site.module.source)
    table = site.module.table
    scope = site.module.table.scope_of(statement)
    offered = site.module.is_package or name in promised(site.module) or asked_for
    offered = offered and scope is table.module
    offered = offered or (scope.is_class and study.project.mentions(f".{name}"))
    silenced = "noqa" in site.module.source.lines[statement.lineno - 1]
    if not silenced and bound_anew.is_bound_anew(name, statement, site.module, study):
        proposal = study.proposal()
        proposal.remove_import(site.module, site.alias)
        message = "removed, the name is bound anew below"
        return study.rewritten(site, RULE.code, message, proposal)
    if commented and not offered:
        return _left(
            site,
            study,
            f"a type comment names {name}",
            "name what the annotated code takes now, and drop the import",
        )
    if offered or silenced:
        return _left(
            site,
            study,
            f"{name} is imported here for others to use",
            "drop it once nobody does",
        )
    if evaluated_text.may_name(
        name,
        table,
        lambda key: _constants(key, site.module, study),
        lambda call: executed_files.may_name(name, call, site.module, study.project),
    ):
        return _left(
            site,
            study,
            f"text that is evaluated here may name {name}",
            "drop it once none does",
        )
    others = [b.node for b in scope.bindings.get(name, ()) if b.node is not site.alias]
    if others and not all(_goes_as_well(name, node, site.module, study) for node in others):
        used = any(table.within[n].lookup(name) is scope for n in table.names_by_id.named(name))
        return _left(
            site,
            study,
            f"nothing uses {name}, which is bound or deleted elsewhere as well",
            "drop it here" if used else "drop both",
        )
    proposal = study.proposal()
    proposal.remove_import(site.module, site.alias)
    return study.rewritten(site, RULE.code, "removed, nothing uses it", proposal)


def _goes_as_well(name: str, node: ast.AST, module: Module, study: Study) -> bool:
    """Whether another binding of a name is an import that goes, since this one comes behind it."""
    if not isinstance(node, ast.alias):
        return False
    return bound_anew.is_bound_anew(name, module.table.statement(node), module, study)


def _constants(key: ast.expr, module: Module, study: Study) -> list[str] | None:
    """The texts that a key is, where every caller in sight writes one."""
    found = study.values(key, module)
    texts = [value.value for value in found if isinstance(value, Constant)]
    known = bool(found) and len(texts) == len(found)
    return [str(text) for text in texts] if known else None


def _left(site: Site, study: Study, reason: str, help: str) -> Decision:
    """Left without a marker: an import that nothing uses does no harm."""
    return replace(study.left(site, RULE.code, reason, help), edits=())
