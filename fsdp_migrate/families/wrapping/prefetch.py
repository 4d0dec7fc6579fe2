"""``backward_prefetch``: FSDP2 always does what BACKWARD_PRE, FSDP1's default, asked for."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External
from fsdp_migrate.families.wrapping import tables
from fsdp_migrate.fsdp1.api import canonical
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import ShardPlan

ARGUMENT = "backward_prefetch"
DEFAULT = "BackwardPrefetch.BACKWARD_PRE"


def may_be_default(constructor: Constructor, study: Study) -> bool:
    """Whether a constructor asks for BACKWARD_PRE, or for one of several that it is among."""
    written = [entry.value for entry in constructor.entries if entry.name == ARGUMENT]
    given = constructor.arguments.get(ARGUMENT)
    nodes = written if given is None else [given, *written]
    return any(_may_be_default(node, constructor.module, study) for node in nodes)


def _may_be_default(node: ast.expr, module: Module, study: Study) -> bool:
    asked = [(node, module), *_rows(node, module, study)]
    names = {name for each, where in asked for name in study.external(each, where)}
    names |= {v.name for v in study.values(node, module) if isinstance(v, External)}
    return DEFAULT in map(canonical, names)


def remove_table(node: ast.expr, module: Module, study: Study, proposal: Proposal) -> None:
    """Remove the table that only constructors look this argument up in."""
    looked_up = tables.lookup(node)
    found = tables.table_of(looked_up[0], module, study) if looked_up is not None else None
    if found is None:
        return
    table, where = found
    if tables.is_for(table, ARGUMENT, study, by_key=False):
        statement = where.table.statement(table)
        proposal.delete(where, statement)
        proposal.claims.gone.add(statement)


def remove_variable(node: ast.expr, plan: ShardPlan, study: Study) -> None:
    """Remove the variable that takes FSDP1's setting to the argument, and nowhere else."""
    module = plan.constructor.module
    match tables.assigned(node, module, study):
        case ([value], [_, name]) if plan.is_first(ARGUMENT):
            if any(map(canonical, study.external(value, module))):
                statement = module.table.statement(name)
                plan.proposal.delete(module, statement)
                plan.proposal.claims.gone.add(statement)


def _rows(node: ast.expr, module: Module, study: Study) -> list[tuple[ast.expr, Module]]:
    """The branches of a condition, or the values of the table that a setting is looked up in."""
    if isinstance(node, ast.IfExp):
        return [(node.body, module), (node.orelse, module)]
    looked_up = tables.lookup(node)
    found = tables.table_of(looked_up[0], module, study) if looked_up is not None else None
    return [(value, found[1]) for value in found[0].values] if found is not None else []
