"""Optimizers that are built after their model may have run.

After a forward without a backward the root's parameters are whole tensors, which the next forward
puts away again: an optimizer built from them never trains the model, without an error
(pytorch/pytorch#149205).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Display, External, Made
from fsdp_migrate.families.training_loop.early_optimizers import (
    PARAMETER_METHODS,
    given_parameters,
    is_optimizer,
    is_optimizer_name,
    named_like_an_optimizer,
)
from fsdp_migrate.families.training_loop.gathered_roots import may_stay_gathered
from fsdp_migrate.families.training_loop.later_wraps import function_scope
from fsdp_migrate.families.training_loop.model_runs import Runs, calls_in
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax import guards
from fsdp_migrate.syntax.expressions import given_arguments, last_name, names_in
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import block_of, walk

CONSTRUCT = Construct.parse("late optimizer")
ADDING = "add_param_group"
SELECTORS = PARAMETER_METHODS | {"modules", "named_modules", "children", "named_children"}


@dataclass(frozen=True, eq=False)
class LateOptimizer:
    """An optimizer that is built, or given parameters, after its model may have run.

    ``before`` is the first statement that asks for the parameters; ``models`` how the models are
    written there.
    """

    optimizer: ast.Call
    before: ast.stmt
    models: tuple[ast.expr, ...]


def find_late_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """Sites for optimizers that are built after a forward of their model in the same scope."""
    seen: set[ast.stmt] = set()
    given = set(given_parameters(module))
    runs = Runs(study)
    names = module.table.calls_by_name.names
    last_names = {last_name(call.func) for call in given}
    last_names |= {name for name in names if name == ADDING or is_optimizer_name(name)}
    for call in module.table.calls_by_name.of(last_names):
        named = named_like_an_optimizer(call) or last_name(call.func) == ADDING
        if call not in given and not named:
            continue
        statement = module.table.statement(call)
        if statement in seen:
            continue
        found = read_late_optimizer(call, module, study, runs)
        if found is not None and found.before not in seen:
            seen |= {statement, found.before}
            yield Site(CONSTRUCT, module, call, call, found.models[0])


def read_late_optimizer(
    call: ast.Call, module: Module, study: Study, runs: Runs | None = None
) -> LateOptimizer | None:
    """The optimizer that a call builds, if its model may have run before that."""
    scope = function_scope(call, module)
    if not _gives_optimizer(call, module, study):
        return None
    asked = _asked(call, scope, module, study)
    if not asked:
        return None
    models = {c for _, node in asked for c in study.models(node, module).constructors}
    if not may_stay_gathered(frozenset(models), study):
        return None
    runs = runs or Runs(study)
    earlier = [
        module.table.statement(run)
        for run in calls_in(scope, module)
        if run is not call and runs.may_be(run, module, models)
    ]
    late = [
        (asking, node)
        for asking, node in asked
        if any(may_follow(run, asking, module) for run in earlier if run is not asking)
        or _called_late(scope, node, models, module, study, runs)
    ]
    if not late:
        return None
    order = module.flow(scope).order
    first = min((s for s, _ in late), key=lambda s: order.get(s, 0))
    before = _beside(first, module.table.statement(call), earlier, module)
    named = {access_path(node) or "": node for _, node in late}
    return LateOptimizer(call, before, tuple(named.values()))


def _called_late(
    scope: Scope,
    model: ast.expr,
    models: set[Constructor],
    module: Module,
    study: Study,
    runs: Runs,
) -> bool:
    """Whether a method that builds the optimizer of ``self.model`` is called after a forward."""
    method = scope.node
    if not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) or not method.args.args:
        return False
    if not (access_path(model) or "").startswith(f"{method.args.args[0].arg}."):
        return False
    for caller in study.tracer.callers(method, module):
        where = caller.module
        then = where.table.statement(caller.call)
        for run in calls_in(function_scope(caller.call, where), where):
            first = where.table.statement(run)
            comes_first = first is not then and may_follow(first, then, where)
            if comes_first and runs.may_be(run, where, models):
                return True
    return False


def _gives_optimizer(call: ast.Call, module: Module, study: Study) -> bool:
    if last_name(call.func) == ADDING:
        return True
    for callee in study.values(call.func, module):
        if isinstance(callee, External):
            name = callee.name
            outside = not name.startswith("torch.") and fsdp1.canonical(name) is None
            if name.startswith("torch.optim.") or outside:
                return "lr_scheduler" not in name and named_like_an_optimizer(call)
        elif isinstance(callee, Class) and is_optimizer(callee, study):
            return True
    method = call.func
    if isinstance(method, ast.Attribute) and study.traced(method.value, module):
        return True  # configure_optimizers of the model's own
    made = list(study.values(call, module))
    for value in made:
        if isinstance(value, Display) and isinstance(value.node, (ast.Tuple, ast.List)):
            for element in value.node.elts:
                made += study.tracer.evaluate(element, value.module, value.frame)
        elif (
            isinstance(value, Made)
            and value.node is not call
            and value.callee is not None
            and is_optimizer(value.callee, study)
        ):
            return True
    return False


def _asked(
    call: ast.Call, scope: Scope, module: Module, study: Study
) -> list[tuple[ast.stmt, ast.expr]]:
    """The statements that ask models for the parameters of an optimizer, and those models."""
    parts = given_arguments(call)
    if isinstance(call.func, ast.Attribute) and call.func.attr != ADDING:
        parts.append(call.func.value)
    direct = list(_traced_in(parts, module, study))
    if direct:
        return [(module.table.statement(call), node) for node in direct]
    names = {n.id for part in parts for n in walk(part) if isinstance(n, ast.Name)}
    found: dict[ast.expr, ast.stmt] = {}
    order = module.flow(scope).order
    built = order.get(module.table.statement(call), 0)
    for statement in sorted((s for s in order if order[s] < built), key=order.__getitem__)[::-1]:
        if not isinstance(statement, ast.stmt) or not _feeds(statement, names):
            continue
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            value = statement.value
            if isinstance(value, ast.Call) and named_like_an_optimizer(value):
                continue  # an optimizer that was built before
            names |= names_in(value or statement)
        for node in _traced_in([statement], module, study):
            if _is_asked(node, module):
                found.setdefault(node, statement)  # not a loop around it
    return [(statement, node) for node, statement in found.items()]


def _traced_in(
    parts: Iterable[ast.AST], module: Module, study: Study
) -> Iterator[ast.Name | ast.Attribute]:
    """The paths in some code that stand for FSDP models."""
    for part in parts:
        for node in walk(part):
            if not isinstance(node, (ast.Name, ast.Attribute)) or access_path(node) is None:
                continue
            if isinstance(node.ctx, ast.Load) and study.traced(node, module):
                yield node


def _feeds(statement: ast.stmt, names: set[str]) -> bool:
    """Whether a statement assigns to one of some names, or puts something into it."""
    match statement:
        case ast.Assign(targets=targets):
            stored: list[ast.AST] = list(targets)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            stored = [target]
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=receiver))):
            stored = [receiver]
        case ast.For(body=body):
            stored = list(body)
        case _:
            return False
    return any(
        isinstance(node, ast.Name) and node.id in names for part in stored for node in walk(part)
    )


def _is_asked(node: ast.expr, module: Module) -> bool:
    """Whether a model is asked for parameters: itself, or by a function that gets the model."""
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.stmt):
            return False
        if isinstance(parent, ast.Call):
            name = last_name(parent.func)
            return name in SELECTORS or "param" in name.lower() or "group" in name.lower()
    return False


def may_follow(first: ast.stmt, then: ast.stmt, module: Module) -> bool:
    """Whether ``then`` may run after ``first`` in one run of their scope."""
    table = module.table
    around = [then, *table.ancestors(then)]
    current: ast.AST = first
    later = (first.lineno, first.col_offset) < (then.lineno, then.col_offset)
    while current not in table.scopes or current is first:
        parent = table.parents[current]
        if isinstance(current, ast.stmt):
            block = block_of(parent, current)
            if any(s in around for s in block):
                beside = next(s for s in block if s in around)
                later = later and block.index(current) <= block.index(beside)
                if later or parent in table.scopes:
                    return later
            known = guards.of(table)
            if any(_leaves(s) and s not in known for s in block[block.index(current) + 1 :]):
                return False
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While)) and parent in around:
            return True
        if isinstance(parent, ast.If) and parent in around:
            later = False  # the other branch: only another round of a loop comes there
        current = parent
    return False


def _leaves(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return last_name(statement.value.func) in {"exit", "_exit", "quit"}
    return isinstance(statement, (ast.Return, ast.Raise))


def _beside(first: ast.stmt, built: ast.stmt, runs: Iterable[ast.stmt], module: Module) -> ast.stmt:
    """The statement in the optimizer's block that ``first`` is in, if it follows all that ran."""
    table = module.table
    around = [built, *table.ancestors(built)]
    current: ast.AST = first
    while isinstance(current, ast.stmt):
        parent = table.parents[current]
        block = block_of(parent, current)
        inside = set(walk(current))
        if any(run in inside for run in runs if run is not current):
            return first
        if any(s in around for s in block):
            return current
        current = parent
    return first
