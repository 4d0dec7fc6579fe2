"""Code that is met for every module of a model: loops over them, and functions that are applied."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function, Value
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

CALLS_DEEP = 3
VISITS = frozenset({"modules", "named_modules"})
HOOKS = frozenset(
    {"register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"}
    | {"register_full_backward_pre_hook", "register_backward_hook"}
)
CHILDREN = frozenset({"children", "named_children"})


def is_visited(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether ``node`` is the variable of a loop over all modules of an FSDP model.

    In FSDP1 a wrapper came first, and then the module in it, which was no FSDP module.
    """
    return is_handed(node, study, module) or visited_model(node, study, module, {}) is not None


def is_handed(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether ``node`` is what a function that is called for every module of a model is given.

    Any model: where it has no FSDP modules, they are not met.
    """
    handed = visitors(study, module, of_any=True)
    return any(d.node in handed for d in definitions(node, module) if d.kind is Kind.PARAMETER)


def visited_model(
    node: ast.expr,
    study: Study,
    module: Module,
    handed: dict[ast.AST, ast.expr],
    depth: int = CALLS_DEEP,
) -> ast.expr | None:
    """The FSDP model, if ``node`` is the variable of a loop over its modules; ``node`` itself if it
    is a parameter that is given one elsewhere."""
    if not isinstance(node, ast.Name):
        return None
    for definition in definitions(node, module):
        if definition.kind is Kind.PARAMETER and definition.node in handed:
            return handed[definition.node]
        if definition.kind is Kind.PARAMETER and depth:
            function = module.table.parents.get(module.table.parents.get(definition.node, node))
            if not isinstance(function, FUNCTIONS):
                continue
            for call in study.tracer.callers(function, module):
                given = call.argument(function, node.id)
                if given and visited_model(given, study, call.module, {}, depth - 1) is not None:
                    return node
        if definition.kind is not Kind.ELEMENT or definition.value is None:
            continue
        for part in _walked(definition.value, module):
            method = part.func if isinstance(part, ast.Call) else None
            if not isinstance(method, ast.Attribute) or method.attr not in VISITS | CHILDREN:
                continue
            deep = method.attr in VISITS or _recurs(node, module)
            model = model_in(method.value, study, module) if deep else None
            if model is not None:
                return model
    return None


def _walked(iterated: ast.expr, module: Module) -> Iterator[ast.AST]:
    """The parts of what a loop goes over, or of the list that its name stands for."""
    yield from ast.walk(iterated)
    for definition in definitions(iterated, module) if isinstance(iterated, ast.Name) else ():
        match definition.value:
            case ast.Call(func=ast.Name(id="list")) if definition.kind is Kind.ASSIGN:
                yield from ast.walk(definition.value)


def model_in(node: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The FSDP model that a path starts with: ``model`` of ``model.layers``."""
    current: ast.expr | None = node
    while current is not None:
        if study.traced(current, module):
            return current
        inner = isinstance(current, (ast.Attribute, ast.Subscript))
        current = current.value if inner else None  # type: ignore[attr-defined]
    return None


def _recurs(node: ast.expr, module: Module) -> bool:
    """Whether the function around ``node`` calls itself."""
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return any(
                isinstance(call, ast.Call) and last_name(call.func) == parent.name
                for call in ast.walk(parent)
            )
    return False


def goes_inside(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether ``node`` is a child of any module in a function that calls itself for the child where
    the test around ``node`` fails: FSDP1's wrapper did, and so the module in it was asked as well.
    """
    if not isinstance(node, ast.Name):
        return False
    children = [
        part
        for d in definitions(node, module)
        if d.kind is Kind.ELEMENT and d.value is not None
        for part in ast.walk(d.value)
        if isinstance(part, ast.Attribute) and part.attr in CHILDREN
    ]
    holder = next((p for p in module.table.ancestors(node) if isinstance(p, ast.stmt)), None)
    function = next((p for p in module.table.ancestors(node) if isinstance(p, FUNCTIONS)), None)
    if not children or not isinstance(holder, ast.If) or function is None:
        return False
    others = {c for s in holder.orelse for c in ast.walk(s) if isinstance(c, ast.Call)}
    return any(
        any(isinstance(a, ast.Name) and a.id == node.id for a in call.args)
        and any(v.node is function for v in study.values(call.func, module))
        for call in others
    )


def visitors(study: Study, module: Module, *, of_any: bool = False) -> dict[ast.AST, ast.expr]:
    """The first parameters of functions that are called for every module, and of which model."""
    found: dict[ast.AST, ast.expr] = {}
    for call in module.table.calls_by_name.of(("apply", "apply_activation_checkpointing")):
        model, function = None, None
        if isinstance(call.func, ast.Attribute) and call.func.attr == "apply" and call.args:
            model, function = call.func.value, call.args[0]
        elif last_name(call.func) == "apply_activation_checkpointing":
            given = dict(zip(("model", "wrapper", "check_fn"), call.args, strict=False))
            given |= {k.arg: k.value for k in call.keywords if k.arg}
            model, function = given.get("model"), given.get("check_fn")
        if model is None or function is None or not (of_any or study.traced(model, module)):
            continue
        for value in study.values(function, module):
            found |= dict.fromkeys(_first_parameter(value), model)
    for call in module.table.calls_by_name.of(HOOKS):
        match call:
            case ast.Call(func=ast.Attribute(value=hooked), args=[function, *_]):
                model = _model_of_hooked(hooked, study, module)
                for value in study.values(function, module) if model is not None else ():
                    found |= {first: model for first in _first_parameter(value) if model}
    for call in module.table.calls_by_name.of(("map", "filter")):
        match call:
            case ast.Call(func=ast.Name(), args=[function, iterated]):
                visited = _visited_by(iterated, study, module)
                for value in study.values(function, module) if visited is not None else ():
                    found |= {first: visited for first in _first_parameter(value) if visited}
    return found


def _model_of_hooked(hooked: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The FSDP model that a module with a hook is in: each of a loop over its modules, or one by a
    path. On the model itself the hook was given the wrapper."""
    if isinstance(hooked, ast.Name):
        return visited_model(hooked, study, module, {})
    return None if study.traced(hooked, module) else model_in(hooked, study, module)


def _first_parameter(function: Value) -> list[ast.arg]:
    if not isinstance(function, Function) or not isinstance(function.node, FUNCTIONS):
        return []
    arguments = function.node.args
    return [*arguments.posonlyargs, *arguments.args][:1]


def _visited_by(node: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The FSDP model whose modules an expression gives one by one: ``model.modules()``."""
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Attribute(value=whole, attr=attr)) if attr in VISITS:
                model = model_in(whole, study, module)
                if model is not None:
                    return model
    return None
