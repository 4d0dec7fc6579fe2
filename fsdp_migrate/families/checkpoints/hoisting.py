"""Moving a collective out of code that only some ranks run.

``if rank == 0: torch.save(model.state_dict(), path)`` waits for the other ranks forever: what
gathers must stand above the condition, where every rank comes by.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function, Made, Value
from fsdp_migrate.families.checkpoints import ranks, snapshots
from fsdp_migrate.families.checkpoints.hoisting_places import Place, Standing, held_parts
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study, sentences
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.kinds import of_kind


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
        if module.table.scope_of(site.expression).lookup(wanted) is not None:
            wanted = f"model_{wanted}"
        name = proposal.fresh(module, site.expression, wanted)
        proposal.replace(module, site.expression, code("{n}", n=name))
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
        return review, True
    return found.review, False


def expression_at(needed: ast.expr, place: Place | None) -> ast.expr | str:
    """An expression for new code at ``place``: as text, where that is in front of a return."""
    return needed if place is None or place.around else ast.unparse(needed)


def is_saved_by_first(site: Site, place: Place, study: Study) -> bool:
    """Whether rank 0 alone has the state, and only writes it to a file."""
    exits = not place.around
    first = any(_is_first(part, site.module, study, exits=exits) for part in place.tests)
    if not first or _is_saved(site.node, site.module, study):
        return first
    name = _own_name(site)
    table = site.module.table
    uses = table.reads(name, table.scope_of(site.statement))
    return bool(uses) and all(_is_saved(n, site.module, study) for n in uses)


def is_read_by_first(site: Site, place: Place | None, study: Study) -> bool:
    """Whether the first rank of all, and no other, does anything with the state."""
    module = site.module
    if place is not None:
        exits = not place.around
        return any(_is_first(part, module, study, exits=exits) for part in place.tests)
    uses = _uses_of_result(site.node, module)
    return bool(uses) and all(_is_under_first(use, module, study) for use in uses)


def _uses_of_result(node: ast.AST, module: Module) -> list[ast.Name]:
    """Where the name is read that a value, or the dictionary it stands in, is given."""
    table = module.table
    parent = table.parents[node]
    while isinstance(parent, ast.Dict):
        parent = table.parents[parent]
    if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
        return []
    target = parent.targets[0]
    if isinstance(target, ast.Subscript):  # states["model"] = ...
        target = target.value
    if not isinstance(target, ast.Name):
        return []
    scope = table.scope_of(parent).lookup(target.id)
    return [
        n
        for n in table.names
        if n.id == target.id
        and isinstance(n.ctx, ast.Load)
        and table.within[n].lookup(n.id) is scope
        and not snapshots.is_subscripted_target(n, module)
    ]


def _is_under_first(node: ast.AST, module: Module, study: Study) -> bool:
    return any(
        _is_first(part, module, study, exits=guard.exits)
        for guard in ranks.guards(node, module)
        for part in held_parts(guard, node, module)
    )


def _is_first(test: ast.expr, module: Module, study: Study, *, exits: bool) -> bool:
    """``torch.distributed.get_rank() == 0``, by any name; ``!=`` where the others returned."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _is_first(test.operand, module, study, exits=not exits)
    if isinstance(test, ast.Call):  # is_main_process()
        called = [v for v in study.values(test.func, module) if isinstance(v, Function)]
        return len(called) == 1 and _says_first(called[0], study, exits=exits)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    zero, op = test.comparators[0], test.ops[0]
    if not isinstance(zero, ast.Constant) or zero.value != 0:
        return False
    if not isinstance(op, ast.NotEq if exits else ast.Eq):
        return False
    found = study.values(test.left, module)
    return bool(found) and all(_is_rank(value) for value in found)


def _says_first(function: Function, study: Study, *, exits: bool) -> bool:
    """Whether all that a function does is to return whether the rank is 0."""
    body = function.node.body
    last = body[-1] if isinstance(body, list) else None
    if not isinstance(last, ast.Return) or last.value is None:
        return False
    alone = sum(isinstance(node, ast.Return) for node in ast.walk(function.node)) == 1
    is_test = isinstance(last.value, ast.Compare)
    return alone and is_test and _is_first(last.value, function.module, study, exits=exits)


def _is_rank(value: Value) -> bool:
    """``torch.distributed.get_rank()``, or ``int(os.environ["RANK"])``."""
    if not isinstance(value, Made) or not isinstance(value.node, ast.Call):
        return False
    if value.made_by == "builtins.int":
        return any(isinstance(n, ast.Constant) and n.value == "RANK" for n in ast.walk(value.node))
    is_call = not value.node.args and not value.node.keywords
    name = value.made_by.replace(".distributed_c10d", "")
    return is_call and name == "torch.distributed.get_rank"


def _is_saved(node: ast.AST, module: Module, study: Study) -> bool:
    """Whether a value is handed to ``torch.save``, alone or in a dictionary."""
    parent = module.table.parents[node]
    while isinstance(parent, (ast.Dict, ast.keyword)):
        parent = module.table.parents[parent]
    if not isinstance(parent, ast.Call):
        return False
    names = study.external(parent.func, module)
    if names == {"builtins.dict"}:
        return _is_saved(parent, module, study)
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
    for name in ranks.BLOCKS:
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block and len(block) > 1:
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
