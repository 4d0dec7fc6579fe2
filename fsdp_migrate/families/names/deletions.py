"""``del x`` of a variable whose assignment goes: it would end the program with a NameError."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import COMPREHENSIONS


def drop_assignment(statement: ast.stmt, module: Module, study: Study, proposal: Proposal) -> None:
    """Delete an assignment whose value nothing needs any more, and what deletes its variable.

    Where the variable may be another assignment's at the ``del``, both stay.
    """
    statement = of_kind(statement, ast.Assign)
    (target,) = statement.targets
    path = access_path(target)
    deleting = _deleting(statement, module) if path is not None else {}
    if not deleting or _is_bound_before(statement, path):
        proposal.delete(module, statement)
        return
    table = module.table
    dels = {
        gone: of_kind(table.statement(gone), ast.Delete)
        for gone, alone in deleting.items()
        if alone
    }
    taken = study.claims.undeleted | proposal.claims.undeleted
    free = taken.isdisjoint(dels.values())
    if len(dels) < len(deleting) or not free:
        proposal.replace_statement(module, statement, code("{t} = None", t=target))
        return
    proposal.delete(module, statement)
    proposal.claims.undeleted.update(dels.values())
    for gone, holder in dels.items():
        rest = ", ".join(ast.unparse(t) for t in holder.targets if t is not gone)
        if rest:
            proposal.replace_statement(module, holder, code(f"del {rest}"))
        else:
            proposal.delete(module, holder)


def _deleting(statement: ast.Assign, module: Module) -> dict[ast.expr, bool]:
    """Each ``del`` that an assignment reaches, and whether no other assignment does."""
    scope = module.table.scope_of(statement)
    while scope.parent is not None and isinstance(scope.node, COMPREHENSIONS):
        scope = scope.parent
    found: dict[ast.expr, bool] = {}
    for target, reaching in module.flow(scope).deleted.items():
        nodes = {definition.node for definition in reaching}
        if statement in nodes:
            found[target] = nodes == {statement}
    return found


def _is_bound_before(statement: ast.Assign, path: str | None) -> bool:
    """``state = convert(state)``: without it the variable is what it was."""
    return any(
        isinstance(node, (ast.Name, ast.Attribute)) and access_path(node) == path
        for node in ast.walk(statement.value)
    )
