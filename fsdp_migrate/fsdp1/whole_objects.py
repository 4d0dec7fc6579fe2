"""What has all that an object or a call has: ``vars(self)``, ``self.__dict__``, ``**objects``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Made, Unknown, Value
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

Origin = tuple[ast.expr, Module]


def is_whole(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether an expression has all of something, so that its items may be any part of it."""
    return _owner(node) is not None or any(
        _collecting(value) is not None for value in tracer.evaluate(node, module)
    )


def parts(node: ast.expr, module: Module, tracer: Tracer) -> Iterator[Origin]:
    """What the object has of which an expression has all: ``vars(self)``."""
    owner = _owner(node)
    if owner is None:
        return
    for value in tracer.evaluate(owner, module):
        if isinstance(value, Made) and isinstance(value.callee, Class):
            for cls in tracer.lineage(value.callee):
                yield from _stored(cls)
        elif isinstance(value, Made) and isinstance(value.node, ast.Call):  # SimpleNamespace(...)
            yield from ((keyword.value, value.module) for keyword in value.node.keywords)


def collected(value: Value, tracer: Tracer) -> Iterator[Origin]:
    """What callers give a parameter that collects arguments, ``*objects`` or ``**objects``."""
    function = _collecting(value)
    if function is None:
        return
    args = function.args
    if value.frame is not None and value.frame.function is function:
        calls = [(value.frame.call, value.frame.module)]
    else:
        calls = [(site.call, site.module) for site in tracer.callers(function, value.module)]
    own = {each.arg for each in (*args.args, *args.kwonlyargs)}
    for call, module in calls:
        if args.vararg is value.node:
            yield from ((each, module) for each in call.args)
            continue
        yield from ((k.value, module) for k in call.keywords if k.arg not in own)


def _owner(node: ast.expr) -> ast.expr | None:
    match node:
        case ast.Call(func=ast.Name(id="vars"), args=[owner]):
            return owner
        case ast.Attribute(value=owner, attr="__dict__"):
            return owner
    return None


def _collecting(value: Value) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    """The function of a parameter that collects arguments, where a value is one."""
    arg = value.node
    if not isinstance(value, Unknown) or not isinstance(arg, ast.arg):
        return None
    parents = value.module.table.parents
    function = parents.get(parents.get(arg, arg))
    if not isinstance(function, FUNCTIONS):
        return None
    return function if arg in (function.args.vararg, function.args.kwarg) else None


def _stored(cls: Class) -> Iterator[Origin]:
    """What the methods of a class assign to attributes of its objects."""
    for node in walk(cls.node):
        match node:
            case ast.Assign(targets=targets, value=given):
                pass
            case ast.AnnAssign(target=target, value=ast.expr() as given):
                targets = [target]
            case _:
                continue
        if any(getattr(getattr(t, "value", None), "id", "") == "self" for t in targets):
            yield given, cls.module
