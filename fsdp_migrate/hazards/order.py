"""What runs before what in one function, as far as its statements show."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping.fully_sharded import Sharding, sharded, shardings
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of, position

STRAIGHT = (ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)  # no choice is made there
DEEPEST = 6  # calls that lead to one another
Precedes = Callable[[ast.AST, ast.AST, Module], bool]


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
            name_called(enclosing_function(module, call), module)
            for module in study.project.modules
            for call in module.table.calls_by_name.of(new)
        }
        new = around - found - {""}
        found |= new
    return frozenset(found)


def name_called(function: ast.AST, module: Module) -> str:
    """The name by which a function is called: of ``__init__``, that of its class."""
    name: str = getattr(function, "name", "")
    return getattr(module.table.parents[function], "name", name) if name == "__init__" else name


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
    # Words cost little, calls that are followed more, and values most.
    done = is_told(use, names_in(model), surely_precedes, module, study) and _surely_done(
        use, module, study, DEEPEST
    )
    if not done:
        return False
    known = sharded(study)
    values = study.values(model, module)
    return bool(values) and all(not done.isdisjoint(known.get(value, ())) for value in values)


def is_told(
    use: ast.AST, given: set[str], precedes: Precedes, module: Module, study: Study
) -> bool:
    """Whether something that may shard, by its name, and that one of some variables comes to or
    from, runs before ``use`` in its function; or anything in those that call one of that name."""
    return _is_told(use, given, precedes, module, study, set())


def _is_told(
    use: ast.AST,
    given: set[str],
    precedes: Precedes,
    module: Module,
    study: Study,
    seen: set[str],
) -> bool:
    names = names_that_shard(study)
    own = module.table.own_calls.get(function_scope(use, module), ())
    if any(
        last_name(call.func) in names
        and (not given or given & names_in(module.table.statement(call)))
        and precedes(call, use, module)
        for call in own
    ):
        return True
    name = name_called(enclosing_function(module, use), module)
    if not name or name in seen or len(seen) == DEEPEST:
        return False
    seen.add(name)
    return any(
        _is_told(call, set(), precedes, m, study, seen)
        for m in study.project.modules
        for call in m.table.calls_by_name.named(name)
    )


def _surely_done(
    use: ast.AST, module: Module, study: Study, depth: int
) -> frozenset[Sharding] | set[Sharding]:
    """The calls of ``fully_shard`` that have surely run when ``use`` does."""
    leading = study.cache(_surely_leading)
    own = module.table.own_calls.get(function_scope(use, module), ())
    done = {
        sharding
        for call in own
        if call in leading and surely_precedes(call, use, module)
        for sharding in leading[call]
    }
    function = enclosing_function(module, use)
    around = {enclosing_function(where, call) for call, where in _places(leading)}
    if not depth or not isinstance(function, FUNCTIONS) or around <= {function}:
        return done
    callers = study.tracer.callers(function, module)
    before = [_surely_done(c.call, c.module, study, depth - 1) for c in callers]
    return done.union(frozenset.intersection(*map(frozenset, before))) if before else done


def _places(leading: dict[ast.Call, dict[Sharding, Module]]) -> Iterator[tuple[ast.Call, Module]]:
    for call, shardings_ in leading.items():
        yield from ((call, module) for module in shardings_.values())


def _surely_leading(study: Study) -> dict[ast.Call, dict[Sharding, Module]]:
    """The calls of ``fully_shard``, and those of functions that come to one whatever they are
    given, each with what is sharded by it, and its file."""
    found: dict[ast.Call, dict[Sharding, Module]] = {}
    for sharding in shardings(study):
        waiting = [(sharding.call, sharding.module)]
        for call, module in waiting:
            if sharding in found.setdefault(call, {}):
                continue
            found[call][sharding] = module
            function = enclosing_function(module, call)
            if isinstance(function, FUNCTIONS) and always_runs(call, function, module):
                waiting += [(c.call, c.module) for c in study.tracer.callers(function, module)]
    return found


def always_runs(call: ast.Call, function: ast.AST, module: Module) -> bool:
    """Whether a function comes to a call whatever it is given."""
    table = module.table
    statement = table.statement(call)
    if any(position(each) < position(statement) for each in table.returns.get(function, ())):
        return False
    for parent in table.ancestors(statement):
        if parent is function:
            return True
        if not isinstance(parent, STRAIGHT):
            return False
    return False
