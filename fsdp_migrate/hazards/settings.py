"""Models that are sharded under a setting, at places that are come to whatever it says."""

from __future__ import annotations

import ast
import re

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.fully_sharded import Sharding, sharded, shardings
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards.order import (
    STRAIGHT,
    follows,
    function_scope,
    is_surely_sharded,
    is_told,
)
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.trees import FUNCTIONS, position, walk

CALLS = 2  # that lead to a place, of each of which the callers are looked for
LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
# Who asks for one of these knows how the model is trained, whatever the setting is called.
KNOWING = re.compile(r"fsdp|shard|parallel|strateg|distrib|world|ddp|dtensor|deepspeed|mesh", re.I)
Under = dict[ast.Call, dict[Sharding, frozenset[str]]]


def is_sharded_if_at_all(model: ast.expr, use: ast.AST, module: Module, study: Study) -> bool:
    """Whether ``fully_shard`` has been called on a model when ``use`` runs, surely or wherever some
    conditions hold on which ``use`` does not depend: it is wrong where they do."""
    if is_surely_sharded(model, use, module, study):
        return True
    # Words cost little, and values most.
    asked = _asked(use, module)
    if any(map(KNOWING.search, asked)) or not is_told(
        use, names_in(model), _may_precede, module, study
    ):
        return False
    known = sharded(study)
    by_value = [frozenset(known.get(value, ())) for value in study.values(model, module)]
    if not by_value or not all(by_value):
        return False
    done = _done(use, module, study, CALLS, frozenset())
    return not any(done.isdisjoint(shardings) for shardings in by_value)


def _done(
    use: ast.AST, module: Module, study: Study, depth: int, asked: frozenset[str]
) -> frozenset[Sharding]:
    """The calls of ``fully_shard`` that come first, under conditions that have nothing in common
    with those of ``use`` or of what leads there."""
    asked |= _asked(use, module)
    if any(map(KNOWING.search, asked)):
        return frozenset()
    leading = study.cache(_leading)
    own = module.table.own_calls.get(function_scope(use, module), ())
    done = {
        sharding
        for call in own
        if call in leading and (around := _before(call, use, module)) is not None
        for sharding, tests in leading[call].items()
        if asked.isdisjoint(tests | around)
    }
    function = enclosing_function(module, use)
    if not depth or not isinstance(function, FUNCTIONS):
        return frozenset(done)
    callers = study.tracer.callers(function, module)
    before = [_done(c.call, c.module, study, depth - 1, asked) for c in callers]
    return frozenset(done).union(frozenset.intersection(*before) if before else ())


def _leading(study: Study) -> Under:
    """The calls of ``fully_shard``, and those of functions that come to one, each with what is
    sharded by it and the names in the conditions of that."""
    found: Under = {}
    for sharding in shardings(study):
        waiting = [(sharding.call, sharding.module, frozenset[str]())]
        for call, module, tests in waiting:
            if sharding in found.setdefault(call, {}):
                continue
            found[call][sharding] = tests
            function = enclosing_function(module, call)
            around = _within(call, function, module)
            if isinstance(function, FUNCTIONS) and around is not None:
                callers = study.tracer.callers(function, module)
                waiting += [(c.call, c.module, tests | around) for c in callers]
    return found


def _within(call: ast.Call, function: ast.AST, module: Module) -> frozenset[str] | None:
    """The names in the conditions under which a function comes to a call; None where it may be
    left before in another way."""
    statement = module.table.statement(call)
    returns = module.table.returns.get(function, ())
    left = [each for each in returns if position(each) < position(statement)]
    names = _conditions(statement, function, module)
    for each in left:
        more = _conditions(each, function, module)
        if not more or names is None:
            return None
        names |= more
    return names


def _conditions(node: ast.AST, last: ast.AST, module: Module) -> frozenset[str] | None:
    names = frozenset[str]()
    for parent in module.table.ancestors(node):
        if parent is last:
            return names
        if isinstance(parent, ast.If):
            names |= _named(parent.test)
        elif not isinstance(parent, STRAIGHT):
            return None
    return None


def _may_precede(first: ast.AST, then: ast.AST, module: Module) -> bool:
    return _before(first, then, module) is not None


def _before(call: ast.AST, use: ast.AST, module: Module) -> frozenset[str] | None:
    """The names in the conditions of a call above ``use``; None where it is not above, or may be
    anywhere."""
    names = frozenset[str]()
    statement: ast.AST = module.table.statement(call)
    while not follows(statement, use, module):
        parent = module.table.parents[statement]
        if isinstance(parent, ast.If):
            names |= _named(parent.test)
        elif not isinstance(parent, STRAIGHT):
            return None
        statement = parent
    return names


def _asked(use: ast.AST, module: Module) -> frozenset[str]:
    """The names in the conditions under which a function comes to a place."""
    names = frozenset[str]()
    function = enclosing_function(module, use)
    for parent in module.table.ancestors(use):
        if parent is function:
            break
        if isinstance(parent, (ast.If, ast.IfExp, ast.While)):
            names |= _named(parent.test)
        elif isinstance(parent, ast.BoolOp):
            names |= _named(parent)
        elif isinstance(parent, ast.Try):
            names |= {"fsdp"}  # what is tried may be just that
    if isinstance(function, FUNCTIONS):
        for each in (e for e in walk(function) if isinstance(e, ast.If)):
            above = position(each) < position(use)
            if above and any(isinstance(inner, LEAVING) for inner in walk(each)):
                names |= _named(each.test)
    return names


def _named(test: ast.expr) -> frozenset[str]:
    """``{"args.fsdp", "rank"}`` of ``args.fsdp and rank == 0``."""
    found: set[str] = set()
    waiting: list[ast.AST] = [test]
    for node in waiting:
        if isinstance(node, (ast.Attribute, ast.Name)):
            found.add(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(repr(node.value))
        else:
            waiting += ast.iter_child_nodes(node)
    return frozenset(found)
