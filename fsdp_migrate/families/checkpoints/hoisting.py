"""Moving a collective out of code that only some ranks run.

``if rank == 0: torch.save(model.state_dict(), path)`` waits for the other ranks forever: what
gathers must stand above the condition, where every rank comes by.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints.first_rank import is_first
from fsdp_migrate.families.checkpoints.hoisting_places import Place, Standing
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import block_of


def hoist(
    site: Site, found: Standing, value: Code, wanted: str, proposal: Proposal, rule: str
) -> tuple[str, bool]:
    """Compute ``value`` where every rank does, and use it where ``site`` stands.

    Returns:
        What may differ, for a review, and whether it is marked already.
    """
    place, module = found.place, site.module
    if place is None:
        proposal.replace(module, site.expression, value)
        return found.review, False
    kept = _own_name(site)
    if kept:
        name = kept
        proposal.delete(module, site.statement)
    else:
        name = _new_name(site, wanted, proposal)
        proposal.replace(module, site.expression, code("{n}", n=name))
    review = _insert(place, name, value, module, proposal, rule)
    return review or found.review, bool(review)


def computed_above(
    site: Site, place: Place, value: Code, wanted: str, proposal: Proposal, rule: str
) -> tuple[str, str]:
    """Compute ``value`` at ``place``, under a new name; the name, and what is marked there."""
    name = _new_name(site, wanted, proposal)
    return name, _insert(place, name, value, site.module, proposal, rule)


def _new_name(site: Site, wanted: str, proposal: Proposal) -> str:
    if site.module.table.scope_of(site.expression).lookup(wanted) is not None:
        wanted = f"model_{wanted}"
    return proposal.fresh(site.module, site.expression, wanted)


def _insert(
    place: Place, name: str, value: Code, module: Module, proposal: Proposal, rule: str
) -> str:
    """Give ``value`` a name at ``place``. Returns what is marked there to be reviewed."""
    text = " and ".join(place.conditions)
    template = f"if {_escaped(text)}:\n    {{n}} = {{v}}" if text else "{n} = {v}"
    proposal.insert_before(module, place.statement, code(template, n=name, v=value))
    if place.dropped:
        spelled = " and ".join(place.dropped)
        review = (
            f"the state is gathered whether '{spelled}' holds or not, because every rank must "
            "take part and ranks may disagree; ask for it here if it is the same on all of them"
        )
        proposal.mark(module, place.statement, rule, sentences(review))
        return review
    return ""


def expression_at(needed: ast.expr, place: Place | None) -> ast.expr | str:
    """An expression for new code at ``place``: as text, where that is in front of a return."""
    return needed if place is None or place.around else ast.unparse(needed)


def is_saved_by_first(site: Site, place: Place, study: Study) -> bool:
    """Whether rank 0 alone has the state, and only writes it to a file."""
    exits = not place.around
    first = any(is_first(part, site.module, study, exits=exits) for part in place.tests)
    if not first or is_written(site.node, site.module, study):
        return first
    name = _own_name(site)
    table = site.module.table
    uses = table.reads(name, table.scope_of(site.statement))
    return bool(uses) and all(is_written(n, site.module, study) for n in uses)


def is_written(node: ast.AST, module: Module, study: Study) -> bool:
    """Whether a value is handed to ``torch.save``, alone or in a dictionary."""
    parent = module.table.parents[node]
    while isinstance(parent, (ast.Dict, ast.keyword)):
        parent = module.table.parents[parent]
    if not isinstance(parent, ast.Call):
        return False
    names = study.external(parent.func, module)
    if names == {"builtins.dict"}:
        return is_written(parent, module, study)
    return bool(names) and all(n in {"torch.save", "torch.serialization.save"} for n in names)


def _own_name(site: Site) -> str:
    """The name that only ``site``'s statement gives a value, when the statement can move whole."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or statement.value is not site.node:
        return ""
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name):
        return ""
    table = site.module.table
    scope = table.scope_of(statement).lookup(target.id)
    if scope is None or scope is not table.scope_of(statement):
        return ""
    last = statement.end_lineno or statement.lineno
    if len(scope.bindings[target.id]) != 1:
        return ""
    if any(site.module.source.comments(max(1, statement.lineno - 1), last)):
        return ""  # they stay with the statement
    return target.id if _leaves_something(statement, site.module) else ""


def _leaves_something(statement: ast.stmt, module: Module) -> bool:
    """Whether the blocks around a statement still have code without it."""
    parent = module.table.parents[statement]
    if len(block_of(parent, statement)) > 1:
        return True
    alone = isinstance(parent, ast.With) and len(parent.items) == 1
    if not alone:
        return False
    parent = of_kind(parent, ast.With)
    context = parent.items[0].context_expr
    called = context.func if isinstance(context, ast.Call) else context
    is_kind = isinstance(called, ast.Attribute) and called.attr == "state_dict_type"
    return is_kind and _leaves_something(parent, module)


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
