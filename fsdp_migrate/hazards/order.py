"""What runs before what in one function, as far as its statements show."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.fully_sharded import Sharding, sharded, shardings
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of, position

STRAIGHT = (ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)  # no choice is made there
DEEPEST = 6  # calls that lead to one another


def function_scope(node: ast.AST, module: Module) -> Scope:
    """The scope of the function around ``node``, or of the module."""
    return module.table.scope_of(node).function() or module.table.module


def end(node: ast.expr) -> tuple[int, int]:
    """Where an expression ends: ``model(x)`` ends before ``model(x).sum()``, and begins there."""
    return node.end_lineno or 0, node.end_col_offset or 0


def follows(first: ast.AST, then: ast.AST, module: Module) -> bool:
    """Whether ``then`` is in a statement below that of ``first``, in the block of the latter: where
    it runs at all, ``first`` has run."""
    table = module.table
    statement = table.statement(first)
    block = block_of(table.parents[statement], statement)
    around = [then, *table.ancestors(then)]
    return any(each in around for each in block[block.index(statement) + 1 :])


def surely_precedes(first: ast.AST, then: ast.AST, module: Module) -> bool:
    """Likewise where ``first`` stands deeper, in loops and ``with`` alone."""
    table = module.table
    statement: ast.AST = table.statement(first)
    while not follows(statement, then, module):
        parent = table.parents[statement]
        if not isinstance(parent, STRAIGHT):
            return False
        statement = parent
    return True


def names_that_shard(study: Study) -> frozenset[str]:
    """The names of functions that may lead to a call of ``fully_shard``, and its own: text tells
    it, so that values are asked for only where such a name is called."""
    return study.cache(_names_that_shard)


def _names_that_shard(study: Study) -> frozenset[str]:
    found = {last_name(sharding.call.func) for sharding in shardings(study)}
    new = set(found)
    while new:
        around = {
            getattr(enclosing_function(module, call), "name", "")
            for module in study.project.modules
            for call in module.table.calls_by_name.of(new)
        }
        new = around - found - {""}
        found |= new
    return frozenset(found)


def calls_that_shard(study: Study) -> dict[ast.Call, set[Sharding]]:
    """The calls of ``fully_shard``, and those of functions that lead to one."""
    return study.cache(_calls_that_shard)


def _calls_that_shard(study: Study) -> dict[ast.Call, set[Sharding]]:
    found: dict[ast.Call, set[Sharding]] = {}
    for sharding in shardings(study):
        waiting = [(sharding.call, sharding.module)]
        functions: set[ast.AST] = set()
        for call, module in waiting:
            found.setdefault(call, set()).add(sharding)
            function = enclosing_function(module, call)
            if isinstance(function, FUNCTIONS) and function not in functions:
                functions.add(function)
                waiting += [(c.call, c.module) for c in study.tracer.callers(function, module)]
    return found


def is_surely_sharded(model: ast.expr, use: ast.AST, module: Module, study: Study) -> bool:
    """Whether ``fully_shard`` has surely been called on a model itself when ``use`` runs: in front
    of it in its function, or in front of every call that leads to that."""
    known = sharded(study)
    values = study.values(model, module)
    return bool(values) and all(
        any(_has_run(s, use, module, study, DEEPEST) for s in known.get(value, ()))
        for value in values
    )


def _has_run(sharding: Sharding, use: ast.AST, module: Module, study: Study, depth: int) -> bool:
    scope = function_scope(use, module)
    own = module.table.own_calls.get(scope, ())
    leading = study.cache(_known_leading)
    if sharding not in leading:
        leading[sharding] = _surely_leading(sharding, study)
    if any(c in leading[sharding] and surely_precedes(c, use, module) for c in own):
        return True
    function = enclosing_function(module, use)
    if not depth or not isinstance(function, FUNCTIONS):
        return False
    callers = study.tracer.callers(function, module)
    return bool(callers) and all(
        _has_run(sharding, c.call, c.module, study, depth - 1) for c in callers
    )


def _known_leading(study: Study) -> dict[Sharding, set[ast.Call]]:
    return {}


def _surely_leading(sharding: Sharding, study: Study) -> set[ast.Call]:
    """A call of ``fully_shard``, and those of functions that come to it whatever they are given."""
    found: set[ast.Call] = set()
    waiting = [(sharding.call, sharding.module)]
    for call, module in waiting:
        if call in found:
            continue
        found.add(call)
        function = enclosing_function(module, call)
        if isinstance(function, FUNCTIONS) and _always_runs(call, function, module):
            waiting += [(c.call, c.module) for c in study.tracer.callers(function, module)]
    return found


def _always_runs(call: ast.Call, function: ast.AST, module: Module) -> bool:
    """Whether a function comes to a call whatever it is given."""
    table = module.table
    if any(position(each) < position(call) for each in table.returns.get(function, ())):
        return False
    for parent in table.ancestors(table.statement(call)):
        if parent is function:
            return True
        if not isinstance(parent, STRAIGHT):
            return False
    return False
