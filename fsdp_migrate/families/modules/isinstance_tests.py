"""``isinstance`` tests that pass over wrappers, or take them off."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules import exact_classes
from fsdp_migrate.fsdp1 import unwrapping
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import FUNCTIONS

RULE = "FSDP404"


def _stops_there(holder: ast.AST, module: Module) -> bool:
    """Whether a function that calls itself for children goes into none of the wrapped modules."""
    table = module.table
    around = list(table.ancestors(holder))
    function = next((p for p in around if isinstance(p, FUNCTIONS)), None)
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    deeper = [
        call
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and (getattr(call.func, "id", "") or getattr(call.func, "attr", "")) == function.name
    ]
    if isinstance(holder, ast.If):  # if isinstance(m, FSDP): continue
        loop = table.parents[holder]
        later = {n for n in ast.walk(loop) if isinstance(n, ast.Call) and n.lineno > holder.lineno}
        return bool(deeper) and later.issuperset(deeper)
    branch = next((p for p in around if isinstance(p, (ast.stmt, ast.comprehension))), None)
    if not isinstance(branch, ast.If):
        return False
    inside = {node for statement in branch.body for node in ast.walk(statement)}
    return bool(deeper) and inside.issuperset(deeper)


def decide_passed_over(site: Site, models: frozenset[Constructor], study: Study) -> Decision | None:
    """Drop ``not isinstance(m, FSDP)`` in a loop over all modules of a model.

    In FSDP1 the loop met each wrapper and the module in it, and the test passed over the wrapper.
    In FSDP2 there is one module, which the loop is for.
    """
    check, table = site.call, site.module.table
    holder = table.parents[check]
    negated = isinstance(holder, ast.UnaryOp) and isinstance(holder.op, ast.Not)
    passes = (
        isinstance(holder, ast.If)
        and holder.test is check
        and not holder.orelse
        and isinstance(holder.body[0], ast.Continue)
    )
    asked = check.args[1]
    named = asked.elts if isinstance(asked, ast.Tuple) else [asked]
    if site.reference not in named:
        return None
    others = [e for e in named if e is not site.reference]
    if not (negated or passes):
        return None
    if not exact_classes.is_visited(check.args[0], study, site.module):
        return None
    if _stops_there(holder, site.module):
        return None
    proposal = study.proposal()
    message = "gone: no module comes by as a wrapper and once more inside of it"
    around = table.parents[holder]
    if others:
        _ask_for(others, check, site, proposal)
    elif passes:
        holder = of_kind(holder, ast.If)
        proposal.delete(site.module, holder)
        proposal.claims.gone.add(holder)
    elif isinstance(around, ast.BoolOp) and isinstance(around.op, ast.And):
        rest = [code("{v}", v=value) for value in around.values if value is not holder]
        proposal.replace(site.module, around, join(" and ", rest))
    else:
        return study.left(
            site,
            RULE,
            "this is about the modules inside of FSDP1's wrappers, and there are no wrappers now",
            "drop the test where it only kept wrappers out",
            models=models,
            quiet=True,
        )
    return study.rewritten(site, RULE, message, proposal, models=models)


def _ask_for(
    classes_left: Sequence[ast.expr], check: ast.Call, site: Site, proposal: Proposal
) -> None:
    """Ask an ``isinstance`` for some of its classes, without brackets around a single one."""
    asked = join(", ", [code("{o}", o=each) for each in classes_left])
    asked = asked if len(classes_left) == 1 else code("({a})", a=asked)
    proposal.replace(site.module, check, code("isinstance({m}, {a})", m=check.args[0], a=asked))


def decide_taken_off(site: Site, models: frozenset[Constructor], study: Study) -> Decision | None:
    """``while isinstance(m, (FSDP, DDP)): m = m.module``: only the others are taken off."""
    check = site.expression
    holder = unwrapping.around(check, site.module)
    if holder is None:
        return None
    check = of_kind(check, ast.Call)
    others = unwrapping.others(check, site.reference)
    if not isinstance(holder, ast.While) and (
        not others or study.traced(check.args[0], site.module)
    ):
        return None
    proposal = study.proposal()
    if others:
        _ask_for(others, check, site, proposal)
        message = "kept for the other wrappers: an FSDP2 model has no inner module"
    else:
        holder = of_kind(holder, ast.While)
        proposal.delete(site.module, holder)
        proposal.claims.gone.add(holder)
        message = "an FSDP2 model has no inner module"
    return study.rewritten(site, RULE, message, proposal, models=models)
