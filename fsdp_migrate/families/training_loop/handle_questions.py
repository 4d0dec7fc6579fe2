"""Questions about FSDP1's handles and strategy that guard code which frees parameters.

``if is_fsdp(m) and m._handle is not None: m._handle.reshard(True)`` becomes
``if is_fsdp(m): m.reshard()``: FSDP2's method does nothing where there is nothing to free.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP407"
PRIVATE = fsdp1.UNMISTAKABLE | fsdp1.FLAT_FIELDS


def decide_question(site: Site, study: Study) -> Decision | None:
    """The decision for an attribute of a model that is asked about, or whose handle is freed."""
    if not isinstance(site.reference, ast.Attribute) or site.receiver is None:
        return None
    if not study.constructors:
        return None
    models = study.models(site.subject, site.module).constructors or study.every_constructor
    proposal = study.proposal()
    freed = _freed(site.attribute, site.module)
    if freed is not None:
        proposal.replace(site.module, freed, code("{m}.reshard()", m=site.subject))
        return study.rewritten(site, RULE, "reshard()", proposal, models=models)
    question = _question(site.attribute, site.module)
    both = site.module.table.parents[question]
    if not _holds(question, site.module, study):
        return None
    if isinstance(both, ast.BoolOp) and isinstance(both.op, ast.And):
        gone = [each for each in both.values if _holds(each, site.module, study)]
        known = study.tracer.told(site.subject, site.module) is True
        kept = [code("{v}", v=each) for each in both.values if each not in gone]
        message = "gone: it is so of every FSDP2 model"
    elif site.attribute.attr == "sharding_strategy":
        return None
    else:
        both, gone, known, kept, message = question, [], False, [], "isinstance FSDPModule"
    if not known and site.attribute.attr != "sharding_strategy":
        name = proposal.name(site.module, PACKAGE, "FSDPModule", site.reference)
        kept.insert(0, code("isinstance({m}, {n})", m=ast.unparse(site.subject), n=name))
    if not kept:
        return None
    proposal.replace(site.module, of_kind(both, ast.expr), join(" and ", kept))
    proposal.claims.gone.update(gone)
    return study.rewritten(site, RULE, message, proposal, models=models)


def _freed(handle: ast.Attribute, module: Module) -> ast.Call | None:
    """``m._handle.reshard(True)``, where nothing is done with what it returns."""
    method = module.table.parents[handle]
    call = module.table.parents[method]
    alone = isinstance(module.table.parents.get(call), ast.Expr)
    if handle.attr != "_handle" or getattr(method, "attr", "") != "reshard" or not alone:
        return None
    match call:
        case ast.Call(args=[ast.Constant(value=True)], keywords=[]):
            return call
        case ast.Call(args=[], keywords=[ast.keyword(value=ast.Constant(value=True))]):
            return call
    return None


def _question(attribute: ast.Attribute, module: Module) -> ast.expr:
    """``m._handle is not None`` around an attribute, or the attribute itself."""
    parent = module.table.parents[attribute]
    return parent if isinstance(parent, ast.Compare) else attribute


def _holds(question: ast.expr, module: Module, study: Study) -> bool:
    """Whether a question about an FSDP1 model is answered with yes for what it becomes."""
    match question:
        case ast.Compare(
            left=ast.Attribute(attr="_handle") as asked,
            ops=[ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            return _guards_freeing(question, asked, module)
        case ast.Attribute(attr="_handle" | "_has_params") as asked:
            return _guards_freeing(question, asked, module)
        case ast.Compare(
            left=ast.Attribute(attr="sharding_strategy") as asked, ops=[op], comparators=[other]
        ):
            return _is_of_other_strategy(asked, op, other, module, study)
    return False


def _guards_freeing(question: ast.expr, asked: ast.Attribute, module: Module) -> bool:
    """Whether a question stands in the condition of an ``if`` that frees the module's parameters,
    and does nothing else with what is private to FSDP1."""
    table, path = module.table, access_path(asked.value)
    child: ast.AST = question
    holder = table.parents[question]
    while isinstance(holder, ast.BoolOp) and isinstance(holder.op, ast.And):
        holder, child = table.parents[holder], holder
    if not isinstance(holder, ast.If) or holder.test is not child or holder.orelse:
        return False
    private = [
        node
        for statement in holder.body
        for node in walk(statement)
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE
    ]
    return bool(private) and all(
        access_path(node.value) == path and _freed(node, module) is not None for node in private
    )


def _is_of_other_strategy(
    asked: ast.Attribute, op: ast.cmpop, other: ast.expr, module: Module, study: Study
) -> bool:
    """Whether ``m.sharding_strategy is not ShardingStrategy.NO_SHARD`` is so of all models."""
    named = {strategies.member(value) for value in study.values(other, module)}
    models = study.models(asked.value, module).constructors or study.every_constructor
    made = [strategies.strategies_of(each, study) for each in models]
    if None in named or len(named) != 1 or not all(made) or not models:
        return False
    every = frozenset[str | None]().union(*made)
    if isinstance(op, (ast.IsNot, ast.NotEq)):
        return every.isdisjoint(named)
    return isinstance(op, (ast.Is, ast.Eq)) and every == named
