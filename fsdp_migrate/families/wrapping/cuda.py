"""Whether the code that makes a model says that it runs on CUDA, and nothing else.

``torch.cuda.set_device(rank)``, ``model.cuda()`` or the nccl backend say so, where they surely run
in the same process: unconditionally in the function of the constructor, in what that function
calls, or in all that leads to it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, Function, FunctionNode
from fsdp_migrate.families.wrapping import devices
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS, position, walk

# Functions of torch.cuda that fail without CUDA.
NEED_CUDA = frozenset(
    f"torch.cuda.{name}"
    for name in ("set_device", "current_device", "device", "synchronize", "get_device_properties")
)
INIT = "init_process_group"
LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)
MAX_CALLERS = 6  # how far up the calls that lead to the constructor are followed
MAX_CALLEES = 3  # how far down the calls beside it


def names_cuda(constructor: Constructor, study: Study) -> bool:
    """Whether all that leads to a constructor says that the program runs on CUDA."""
    return _leads(constructor.call, constructor.module, study, frozenset())


def _leads(node: ast.AST, module: Module, study: Study, passed: frozenset[ast.AST]) -> bool:
    """Whether CUDA is named beside ``node``, or in everything that leads to its function."""
    around = _function(node, module)
    for call in _own_calls(around, module):
        if runs_with(call, node, module) and _says(call, module, study, MAX_CALLEES):
            return True
    if around is None or isinstance(around, ast.Lambda):
        return False
    if any(
        _always_runs(call, None, module) and _says(call, module, study, MAX_CALLEES)
        for call in _own_calls(None, module)
    ):
        return True
    if around in passed or len(passed) == MAX_CALLERS:
        return False
    callers = study.tracer.callers(around, module)
    return bool(callers) and all(
        _leads(c.call, c.module, study, passed | {around}) for c in callers
    )


def _says(call: ast.Call, module: Module, study: Study, depth: int) -> bool:
    """Whether a call fails without CUDA, or calls something of the project that does."""
    names = study.external(call.func, module)
    if names & NEED_CUDA:
        return True
    if any(n.startswith("torch.distributed.") and n.endswith(INIT) for n in names):
        return _is_nccl(call, module, study)
    if names:
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr == "to":
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "device")]
        return any(devices.read_value(g, module, study).certain == "cuda" for g in given)
    if depth == 0:
        return False
    values = study.values(call.func, module)
    return bool(values) and all(
        any(_does_say(f, study, depth - 1) for f in _functions(v, study)) for v in values
    )


def _does_say(function: Function, study: Study, depth: int) -> bool:
    """Whether a function certainly names CUDA when it is called."""
    node, module = function.node, function.module
    return any(
        _always_runs(call, node, module) and _says(call, module, study, depth)
        for call in _own_calls(node, module)
    )


def _functions(value: object, study: Study) -> list[Function]:
    """The function that calling a value runs, the constructor of a class included."""
    if isinstance(value, Function):
        plain = isinstance(value.node, ast.FunctionDef)
        return [value] if plain else []
    if isinstance(value, Class):
        found = study.tracer.attribute(value, "__init__", value.node, value.module)
        return [f for f in found if isinstance(f, Function)]
    return []


def _is_nccl(call: ast.Call, module: Module, study: Study) -> bool:
    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "backend")]
    values = [v for g in given for v in study.values(g, module)]
    return bool(values) and all(
        isinstance(v, Constant) and "nccl" in str(v.value) and devices.is_fixed(v) for v in values
    )


# -- what surely runs -----------------------------------------------------------------------------


def _function(node: ast.AST, module: Module) -> FunctionNode | None:
    """The function around ``node``; None for code of the module itself."""
    function = module.table.scope_of(node).function()
    around = None if function is None else function.node
    assert around is None or isinstance(around, FUNCTIONS)
    return around


def _own_calls(function: FunctionNode | None, module: Module) -> Iterator[ast.Call]:
    scope = module.table.module if function is None else module.table.scopes[function]
    yield from module.table.own_calls.get(scope, ())


def runs_with(call: ast.Call, node: ast.AST, module: Module) -> bool:
    """Whether a call of the same function surely runs when ``node`` does."""
    table = module.table
    shared = {node, *table.ancestors(node)}
    child: ast.AST = call
    for parent in table.ancestors(call):
        if _decides(parent, child) and not (parent in shared and _same_part(parent, child, shared)):
            return False
        if parent in shared and isinstance(parent, (*FUNCTIONS, ast.Module)):
            break
        child = parent
    return position(call) <= position(node) or not _leaves(node, call, module)


def _always_runs(call: ast.Call, function: FunctionNode | None, module: Module) -> bool:
    """Whether a call runs whenever its function, or its module, does."""
    child: ast.AST = call
    for parent in module.table.ancestors(call):
        if parent is function:
            break
        if _decides(parent, child):
            return False
        child = parent
    return not _leaves(function, call, module)


def _decides(parent: ast.AST, child: ast.AST) -> bool:
    """Whether ``parent`` may leave out ``child``."""
    match parent:
        case ast.If() | ast.IfExp() | ast.While():
            return child is not parent.test
        case ast.For() | ast.AsyncFor():
            return child is not parent.iter
        case ast.BoolOp():
            return child is not parent.values[0]
        case ast.Try() | ast.TryStar():
            return child not in parent.finalbody
    return isinstance(parent, (*COMPREHENSIONS, ast.Lambda, ast.Match, ast.ClassDef, ast.Assert))


def _same_part(parent: ast.AST, child: ast.AST, shared: set[ast.AST]) -> bool:
    """Whether ``child`` stands in the block of ``parent`` in which the constructor stands."""
    if child in shared:
        return True
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and child in block:
            return any(each in shared for each in block)
    return False


def _leaves(start: ast.AST | None, end: ast.AST, module: Module) -> bool:
    """Whether the function of ``end`` may be left between two places in it."""
    around = _function(end, module)
    if around is None and start is None:
        return False  # no return stands there, and what loops repeat is decided by them
    first = position(start) if start is not None and start is not around else (0, 0)
    scope = module.table.module if around is None else module.table.scopes[around]
    return any(
        isinstance(n, LEAVING)
        and first < position(n) < position(end)
        and (module.table.scope_of(n).function() or module.table.module) is scope
        for n in walk(around or module.source.tree)
    )
