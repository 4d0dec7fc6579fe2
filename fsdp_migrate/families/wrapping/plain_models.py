"""Models that nothing has wrapped yet: ``model = Net()``, ``model.load_state_dict(state)``.

A model that gets sharded parts later is a plain module until then, and takes plain states.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import partial

from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External, Function, Made
from fsdp_migrate.families.wrapping.computing_methods import MODULE_API
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.trees import block_of

GIVEN = frozenset({"add_module", "apply", "register_module"})  # which may bring a part along
TENSORS_AND_NUMBERS = frozenset(
    {*("parameters", "named_parameters", "buffers", "named_buffers", "state_dict", "numel")}
    | {*("float", "id", "int", "len", "repr", "str", "sum", "type")}
)
KNOWN = (Class, External, Function)


def is_plain_yet(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a model is made in this function, and surely not wrapped between there and here."""
    match list(study.defined_by(node, module)) if isinstance(node, ast.Name) else []:
        case [Definition(node=ast.Assign(targets=[ast.Name(id=name)]) as made)]:
            fresh = set(ast.walk(made.value))
        case _:
            return False
    values = study.values(node, module)
    if not all(isinstance(v, Made) and isinstance(v.callee, Class) for v in values):
        return False
    wrapping = study.cache(_wrapping)
    between = _between(made, module.table.statement(node), module)
    if wrapping is None or between is None or not fresh.issuperset(v.node for v in values):
        return False
    calls, functions = wrapping
    for each in (n for statement in between for n in ast.walk(statement)):
        if each in calls or last_name(each) in functions:
            return False
        if isinstance(each, ast.Call) and not _is_known(each, name, module, study):
            return False
    return True


def _is_known(call: ast.Call, model: str, module: Module, study: Study) -> bool:
    """Whether it is known what a call does with a model, if it gets it at all."""
    if not any(map(partial(_hands_over, name=model), (call.func, *given_arguments(call)))):
        return True
    if isinstance(call.func, ast.Attribute) and call.func.attr in MODULE_API - GIVEN:
        return True
    callees = study.values(call.func, module)
    return bool(callees) and all(isinstance(callee, KNOWN) for callee in callees)


def _hands_over(node: ast.AST, name: str) -> bool:
    """Whether an expression may give away the module in a variable, or a part of it."""
    if isinstance(node, ast.Call) and last_name(node.func) in TENSORS_AND_NUMBERS:
        return False
    if isinstance(node, ast.Name):
        return node.id == name
    return any(_hands_over(child, name) for child in ast.iter_child_nodes(node))


def _between(first: ast.stmt, then: ast.stmt, module: Module) -> list[ast.stmt] | None:
    """The statements from one to another, both included; None if no straight way leads there."""
    found: list[ast.stmt] = [then]
    current = then
    while True:
        parent = module.table.parents[current]
        block = block_of(parent, current)
        if first in block:
            return found + block[block.index(first) : block.index(current)]
        found += block[: block.index(current)]
        if not isinstance(parent, (ast.If, ast.With, ast.Try)):
            return None
        current = parent


def _wrapping(study: Study) -> tuple[set[ast.AST], set[str]] | None:
    """The calls that wrap models, or lead to one that does, and the functions that these run;
    None where some may do so that are not seen."""
    calls: set[ast.AST] = set()
    names: set[str] = set()
    for constructor in study.constructors.values():
        unseen = constructor.is_context or constructor.defined_by or constructor.made_at
        if unseen or constructor.reference in constructor.call.args or study.wrapping.constructors:
            return None
        calls.add(constructor.call)
        for function in _around(constructor.call, constructor.module, study, calls):
            if isinstance(function, ast.Lambda):
                return None
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                names.add(function.name)
    return calls, names - {"__init__", "__call__", "forward"}


def _around(call: ast.AST, module: Module, study: Study, calls: set[ast.AST]) -> Iterator[ast.AST]:
    """The functions that a call runs in, however far up, whose own calls join ``calls``."""
    waiting = [(call, module)]
    for each, where in waiting:
        function = enclosing_function(where, each)
        yield function
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for caller in study.tracer.callers(function, where):
                if caller.call not in calls:
                    calls.add(caller.call)
                    waiting.append((caller.call, caller.module))
