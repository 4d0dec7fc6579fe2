"""Whether the backward of a forward surely follows it: ``loss = model(x)``, ``loss.backward()``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import CallSite
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS, block_of, split_path, walk

EVALUATING = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
CALLERS_DEEP = 3
CUTTING = frozenset({"detach", "item", "data", "tolist"})  # what no gradient goes through
# What tells of a value, and keeps nothing of it.
TELLING = frozenset({"print", "debug", "info", "log", "warning"})
CONTAINERS = frozenset({"append", "extend", "add", "update"})
COMPOUND = (*LOOPS, ast.Match, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def is_without_gradients(node: ast.AST, module: Module) -> bool:
    for parent in module.table.ancestors(node):
        around: list[ast.expr] = []
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            around = [item.context_expr for item in parent.items]
        elif isinstance(parent, FUNCTIONS) and not isinstance(parent, ast.Lambda):
            around = parent.decorator_list
        for each in around:
            name = each.func if isinstance(each, ast.Call) else each
            if last_name(name) in EVALUATING:
                return True
    return False


def backward_follows(
    node: ast.expr, module: Module, study: Study, depth: int = CALLERS_DEEP
) -> bool:
    """Whether a backward through the value of ``node`` surely follows, here or in every caller."""
    table = module.table
    statement: ast.AST = table.statement(node)
    in_lambda = any(isinstance(parent, ast.Lambda) for parent in table.ancestors(node))
    if in_lambda or is_without_gradients(node, module):
        return False
    flow = _Flow(node)
    if isinstance(statement, ast.Return):
        return flow.carries(statement) and _in_callers(statement, module, study, depth)
    if isinstance(statement, ast.stmt) and flow.surely_runs_backward(statement):
        return True
    while isinstance(statement, ast.stmt) and not isinstance(statement, FUNCTIONS):
        parent = table.parents[statement]
        block = block_of(parent, statement)
        for later in block[block.index(statement) + 1 :]:
            if flow.surely_runs_backward(later):
                return True
            if isinstance(later, ast.Return):
                return flow.carries(later) and _in_callers(later, module, study, depth)
            if _may_leave(later):
                return False
        statement = parent
    return False


def is_dropped(node: ast.expr, module: Module) -> bool:
    """Whether no backward follows a forward: what it gives is cut off where it stands, as in
    ``print(model(x).sum().item())``, or is not kept, or gets to no backward, and not out of its
    function."""
    child: ast.AST = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.Attribute) and parent.attr in CUTTING:
            return True
        if isinstance(parent, ast.stmt):
            break
        child = parent
    statement = module.table.statement(node)
    if isinstance(statement, ast.Expr):
        return child is node
    names = statement.targets if isinstance(statement, ast.Assign) else []
    function = enclosing_function(module, node)
    if not names or not all(isinstance(each, ast.Name) for each in names):
        return False
    known: dict[ast.AST, bool] = {}
    return not any(_carries(each, node, module, known) for each in _ends(function))


def _ends(function: ast.AST) -> Iterator[ast.AST]:
    """Where what a function computes leaves it, or may have a backward."""
    for each in walk(function):
        match each:
            case ast.Return() | ast.Yield() | ast.AugAssign():
                yield each
            case ast.Assign(targets=targets) if not all(isinstance(t, ast.Name) for t in targets):
                yield each.value
            case ast.Expr(value=ast.Call(func=called) as call):
                if "backward" in last_name(called) or last_name(called) not in TELLING:
                    yield call
            case ast.Call(func=called) if "backward" in last_name(called):
                yield each


def _carries(node: ast.AST, value: ast.expr, module: Module, known: dict[ast.AST, bool]) -> bool:
    """Whether gradients flow from an expression to a value, through the names between them."""
    if node is value:
        return True
    if isinstance(node, ast.Attribute) and node.attr in CUTTING:
        return False
    if not isinstance(node, ast.Name):
        return any(_carries(n, value, module, known) for n in ast.iter_child_nodes(node))
    if not isinstance(node.ctx, ast.Load):
        return False
    for definition in definitions(node, module):
        given = definition.value
        if given is not None and given not in known:
            known[given] = False  # a loop gives a name what it had
            known[given] = _carries(given, value, module, known)
    return any(known.get(d.value, False) for d in definitions(node, module) if d.value)


def _in_callers(node: ast.AST, module: Module, study: Study, depth: int) -> bool:
    """Whether a backward follows wherever the function around ``node`` is called."""
    function = enclosing_function(module, node)
    if not depth or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    callers = all_callers(function, module, study)
    return bool(callers) and all(
        backward_follows(caller.call, caller.module, study, depth - 1) for caller in callers
    )


def all_callers(
    function: ast.FunctionDef | ast.AsyncFunctionDef, module: Module, study: Study
) -> list[CallSite]:
    """The calls of a function, if nobody else may call it: it is not handed on by its name."""
    callers = study.tracer.callers(function, module)
    calls = {caller.call.func for caller in callers}
    is_method = isinstance(module.table.parents[function], ast.ClassDef)
    for each in study.project.modules:
        if not each.mentions(function.name):
            continue
        table = each.table
        used: list[ast.expr] = list(table.names_by_id.named(function.name))
        used += table.attributes_by_name.named(function.name)
        for node in used:
            if node not in calls and _may_be(node, each, is_method=is_method):
                return []
    return callers


def _may_be(node: ast.expr, where: Module, *, is_method: bool) -> bool:
    """Whether a function of that name is read there: a method may be that of any object, another
    function is an attribute of an imported module only."""
    root = split_path(node)[0]
    if not isinstance(getattr(node, "ctx", None), ast.Load) or isinstance(node, ast.Name):
        return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and not is_method
    if is_method or root is None:
        return is_method
    scope = where.table.scope_of(root).lookup(root.id)
    return scope is not None and any(b.qualified for b in scope.bindings[root.id])


def _may_leave(node: ast.AST, *, in_loop: bool = False) -> bool:
    """Whether a statement may end the function, or the round of the loop that it stands in."""
    if isinstance(node, (ast.Return, ast.Yield, ast.YieldFrom)):
        return True
    if isinstance(node, (ast.Continue, ast.Break)):
        return not in_loop
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return False
    inside = in_loop or isinstance(node, LOOPS)
    return any(_may_leave(child, in_loop=inside) for child in ast.iter_child_nodes(node))


class _Flow:
    """The paths that hold what was computed from a value, statement by statement."""

    def __init__(self, value: ast.expr) -> None:
        self.value = value
        self.paths: set[str] = set()

    def carries(self, node: ast.AST) -> bool:
        """Whether gradients flow from an expression to the value."""
        if isinstance(node, ast.Attribute) and node.attr in CUTTING:
            return False
        if node is self.value or (isinstance(node, ast.expr) and access_path(node) in self.paths):
            return True
        return any(map(self.carries, ast.iter_child_nodes(node)))

    def surely_runs_backward(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.If(body=body, orelse=orelse):
                branches = [self._any(body), self._any(orelse)]
                return all(branches)
            case ast.With(body=body) | ast.AsyncWith(body=body) | ast.Try(body=body):
                return self._any(body)
            case ast.For(body=body) | ast.AsyncFor(body=body) | ast.While(body=body):
                if isinstance(statement, (ast.For, ast.AsyncFor)):
                    self._assign(statement.target, statement.iter)
                self._any(body)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AugAssign(target=target, value=value):
                if self.carries(value):
                    self._assign(target, value)
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method) as call):
                if method.attr in CONTAINERS and any(map(self.carries, given_arguments(call))):
                    self._assign(method.value, call)
        if isinstance(statement, COMPOUND):
            return False
        return any(self._is_backward(each) for each in walk(statement))

    def _any(self, block: list[ast.stmt]) -> bool:
        found = [self.surely_runs_backward(each) for each in block]  # all of them are read
        return any(found)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                self._assign(each, value)
            return
        carried = self.carries(value)
        filled = isinstance(target, ast.Subscript)
        path = access_path(target.value if isinstance(target, ast.Subscript) else target)
        if path is not None and carried:
            self.paths.add(path)
        elif path is not None and not filled:
            self.paths.discard(path)

    def _is_backward(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call) or "backward" not in last_name(node.func):
            return False
        return self.carries(node)
