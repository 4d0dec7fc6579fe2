"""``isinstance`` tests that pass over wrappers, or take them off."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.modules import visited_modules
from fsdp_migrate.families.parameters import clips
from fsdp_migrate.fsdp1 import unwrapping
from fsdp_migrate.fsdp1.api import is_fsdp2_class
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.kinds import of_kind, present
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of, walk

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
    check = site.call
    holder = site.module.table.parents[check]
    if not visited_modules.is_visited(check.args[0], study, site.module):
        return None
    handed = visited_modules.is_handed(check.args[0], study, site.module)
    above = site.module.table.parents[holder]
    if isinstance(holder, ast.UnaryOp) and _passes(holder, above, handed=handed):
        return None  # if not isinstance(m, FSDP): continue: the rest is done for wrappers
    if not (_is_negated(check, site.module) or _passes(check, holder, handed=handed)):
        return None
    if _stops_there(holder, site.module):
        return None
    if any(_is_fsdp2s(other, site, study) for other in unwrapping.others(check, site.reference)):
        return study.left(
            site,
            RULE,
            "units of FSDP2 models are passed over here, of FSDP1's only their wrappers, and what "
            "is migrated would be passed over with the former",
            "say which modules are meant, without a question for their wrappers",
            models=models,
            quiet=True,
        )
    proposal = study.proposal()
    message = "gone: no module comes by as a wrapper and once more inside of it"
    if write_as_false(check, site, proposal):
        return study.rewritten(site, RULE, message, proposal, models=models)
    return study.left(
        site,
        RULE,
        "this is about the modules inside of FSDP1's wrappers, and there are no wrappers now",
        "drop the test where it only kept wrappers out",
        models=models,
        quiet=True,
    )


def _is_fsdp2s(node: ast.expr, site: Site, study: Study) -> bool:
    return any(map(is_fsdp2_class, study.external(node, site.module)))


def _is_negated(check: ast.expr, module: Module) -> bool:
    node, negated = check, False
    while isinstance(node := module.table.parents[node], (ast.UnaryOp, ast.BoolOp)):  # type: ignore[assignment]
        negated ^= isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    return negated


def _passes(check: ast.expr, holder: ast.AST, *, handed: bool) -> bool:
    """Whether nothing is done for what a test holds for: a loop goes on, or ``handed`` a module, a
    function says no."""
    match holder:
        case ast.If(test=test, body=[ast.Continue(), *_], orelse=[]):
            return test is check
        case ast.If(test=test, body=[ast.Return(value=None | ast.Constant() as said)]):
            return test is check and handed and not (said and said.value)
        case ast.IfExp(test=test, body=ast.Constant(value=value)):
            return test is check and handed and not value
    return False


def write_as_false(check: ast.Call, site: Site, proposal: Proposal) -> bool:
    """Write what is left of a test, and of what it is asked for, where nothing is FSDP1's wrapper.

    The classes beside FSDP1's are asked for as before. Returns False where no form is known.
    """
    others = unwrapping.others(check, site.reference)
    if others:
        _ask_for(others, check, site, proposal)
        return True
    module, table = site.module, site.module.table
    node, value = _settled(check, module)
    holder = table.parents[node]
    match holder:
        case ast.BoolOp(op=op, values=values):
            rest = [code("{v}", v=each) for each in values if each is not node]
            word = " and " if isinstance(op, ast.And) else " or "
            proposal.replace(module, holder, join(word, rest))
            proposal.claims.gone.add(node)
        case ast.IfExp(test=test) if test is node:
            kept, gone = (holder.body, holder.orelse) if value else (holder.orelse, holder.body)
            proposal.replace(module, holder, code("{v}", v=kept))
            proposal.claims.gone |= {node, gone}
        case ast.While(test=test, orelse=[]) if test is node and not value:
            proposal.delete(module, holder)
            proposal.claims.gone.add(holder)
        case ast.If(test=test) if test is node and not value:
            above = table.parents[holder]
            is_part = holder.orelse or getattr(above, "orelse", None) == [holder]
            if is_part and (holder.orelse or isinstance(above, ast.If)):
                proposal.drop_branch(module, holder)
            else:
                proposal.delete(module, holder)
            proposal.claims.gone |= {node, *holder.body}
        case ast.If(test=test, body=[ast.Return(value=ast.expr() as returned)]) if test is node:
            block = block_of(table.parents[holder], holder)
            proposal.replace_statement(module, holder, code("return {v}", v=returned))
            for statement in () if holder.orelse else block[block.index(holder) + 1 :]:
                proposal.delete(module, statement)
                proposal.claims.gone.add(statement)
            proposal.claims.gone |= {node, *holder.orelse}
        case ast.Lambda() | ast.Return() | ast.Assign() | ast.keyword():
            proposal.replace(module, node, code(str(value)))
            proposal.claims.gone.add(node)
        case _:
            return False
    return True


def _settled(check: ast.expr, module: Module) -> tuple[ast.expr, bool]:
    """The widest condition that is decided where ``check`` is false, and whether it holds then."""
    node, value = check, False
    while True:
        match module.table.parents[node]:
            case ast.UnaryOp(op=ast.Not()) as parent:
                node, value = parent, not value
            case ast.BoolOp(op=op) as parent if isinstance(op, ast.And) is not value:
                node = parent
            case _:
                return node, value


def _ask_for(
    classes_left: Sequence[ast.expr], check: ast.Call, site: Site, proposal: Proposal
) -> None:
    """Ask an ``isinstance`` for some of its classes, without brackets around a single one."""
    asked = join(", ", [code("{o}", o=each) for each in classes_left])
    asked = asked if len(classes_left) == 1 else code("({a})", a=asked)
    proposal.replace(site.module, check, code("isinstance({m}, {a})", m=check.args[0], a=asked))


def _is_of_equal_arms(check: ast.Call, site: Site, study: Study) -> bool:
    """Whether a test chooses between a model and the module inside of it, and for nothing else:
    ``model.module.head if isinstance(model, FSDP) else model.head``."""
    table, model = site.module.table, check.args[0]
    test: ast.AST = table.parents[check]
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    choice = table.parents[test] if negated else test
    if not isinstance(choice, ast.IfExp) or choice.test is not (test if negated else check):
        return False
    inside, other = (choice.orelse, choice.body) if negated else (choice.body, choice.orelse)
    path, within = access_path(model), set(walk(inside))
    taken = [
        node
        for node in within
        if isinstance(node, ast.Attribute)
        and node.attr == "module"
        and access_path(node.value) == path
    ]
    if path is None or not taken or unwrapping.others(check, site.reference):
        return False
    if any(s.node in within and s.node not in taken for s in present(study.found)[0]):
        return False  # a model is asked for more than a plain module, such as its state
    return ast.unparse(inside).replace(f"{path}.module", path) == ast.unparse(other)


def decide_taken_off(site: Site, models: frozenset[Constructor], study: Study) -> Decision | None:
    """``while isinstance(m, (FSDP, DDP)): m = m.module``: only the others are taken off."""
    check = of_kind(site.expression, ast.Call)
    if _is_of_equal_arms(check, site, study):
        proposal = study.proposal()
        if write_as_false(check, site, proposal):
            message = "gone: the module inside is the model itself, so that both ways are one"
            return study.rewritten(site, RULE, message, proposal, models=models)
    alone = not unwrapping.others(check, site.reference)
    if alone and clips.is_clipped_alike(check, models, study, site.module):
        proposal = study.proposal()
        if write_as_false(check, site, proposal):
            message = "gone: both ways clip by torch's function now"
            return study.rewritten(site, RULE, message, proposal, models=models)
    found = unwrapping.of(check, site.module, study.tracer)
    if found is None:
        return None
    others = unwrapping.others(check, site.reference)
    if not found.again and (not others or study.traced(check.args[0], site.module)):
        return None
    proposal = study.proposal()
    if found.alone and write_as_false(check, site, proposal):
        message = "an FSDP2 model has no inner module"
        if others:
            message = f"kept for the other wrappers: {message}"
        return study.rewritten(site, RULE, message, proposal, models=models)
    return study.left(
        site,
        RULE,
        "an FSDP2 model has no inner module, and what takes wrappers off one by one would not end",
        "take off the other wrappers alone",
        models=models,
        quiet=True,
    )
