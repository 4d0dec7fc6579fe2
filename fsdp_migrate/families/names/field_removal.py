"""Fields of dataclasses that nothing reads any more, because what read them was migrated."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis import dataclass_fields
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.names.deletions import drop_assignment
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.proposal import Proposal


def remove(site: Site, study: Study) -> tuple[Proposal, frozenset[Constructor]] | None:
    """Remove the field in whose definition a site stands, and what gives it a value.

    None if somebody may still read it. The models are those of the calls that read it.
    """
    if study.run_time_states:
        return None
    field = dataclass_fields.field_at(site.node, site.module, study.project)
    if field is None or not field.is_last or not field.uses or len(field.cls.body) == 1:
        return None
    if any(isinstance(use.ctx, ast.Store) for use, _ in field.uses):
        return None
    readers = [_reader(use, module, study) for use, module in field.uses]
    models = frozenset(m for reader in readers if reader is not None for m in reader.models)
    values = [(keyword.value, module) for _, keyword, module in field.given]
    if None in readers or not all(_is_plain(value, module, study) for value, module in values):
        return None
    proposal = study.proposal()
    proposal.delete(field.module, field.statement)
    for call, keyword, module in field.given:
        proposal.remove_argument(module, call, keyword)
    proposal.claims.gone.add(field.statement)
    proposal.claims.gone.update(value for value, _ in values)
    return proposal, models


def remove_attribute(site: Site, study: Study) -> tuple[Proposal, frozenset[Constructor]] | None:
    """Remove the statement that gives ``self`` a setting, where nothing reads it any more.

    None if somebody may still read it. The models are those of the calls that read it.
    """
    statement = site.module.table.parents.get(site.node)
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name) as target]):
            pass
        case _:
            return None
    readers: list[Decision | None] = []
    for module in study.project.read:
        if not module.mentions(name):
            continue
        table = module.table
        given = {keyword.arg for call in table.calls for keyword in call.keywords}
        bound = any(scope.is_class and name in scope.bindings for scope in table.scopes.values())
        if bound or name in given or any(string.value == name for string in table.strings):
            return None
        for use in table.attributes_by_name.named(name):
            if use is not target:
                is_read = isinstance(use.ctx, ast.Load)
                readers.append(_reader(use, module, study) if is_read else None)
    models = frozenset(m for reader in readers if reader is not None for m in reader.models)
    is_plain = _is_plain(statement.value, site.module, study)
    if not readers or None in readers or not is_plain or study.run_time_states:
        return None
    proposal = study.proposal()
    drop_assignment(statement, site.module, study, proposal)
    return proposal, models


def _reader(use: ast.Attribute, module: Module, study: Study) -> Decision | None:
    """What was decided about the call or the argument that reads a field, if it is gone then."""
    for node in (use, *module.table.ancestors(use)):
        settled = study.settled.get(node)
        if settled is not None:
            return None if settled.outcome is Outcome.LEFT or _is_kept(node, study) else settled
        if isinstance(node, ast.stmt):
            return None
    return None


def _is_kept(node: ast.AST, study: Study) -> bool:
    return node in study.claims.kept


def _is_plain(value: ast.expr, module: Module, study: Study) -> bool:
    """Whether a value has no effect but to be: FSDP1's own settings, in literals."""
    calls = [n for n in ast.walk(value) if isinstance(n, (ast.Call, ast.NamedExpr, ast.Await))]
    return all(
        isinstance(call, ast.Call)
        and any(fsdp1.canonical(name) for name in study.external(call.func, module))
        for call in calls
    )
