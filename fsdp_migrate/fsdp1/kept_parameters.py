"""What ``__init__`` keeps of its parameters: ``self.model`` is ``model``, and what is asked of one
is known of the other.

``self.model = model``, or ``super().__init__(model)`` of a class that does so, and then
``if isinstance(model, FSDP): self.model.module ...``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import Test
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import argument_of
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.syntax import conditions
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

SUPER = frozenset({"super", "__init__"})  # who makes the object, and sets its attributes


def tests(node: ast.expr, module: Module, tracer: Tracer) -> Iterator[Test]:
    """The ``isinstance`` tests of a parameter of ``__init__`` under which the attribute stands that
    it is kept in."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return
    scope = module.table.scope_of(node).function()
    init = scope.node if scope is not None else None
    if not isinstance(init, ast.FunctionDef) or init.name != "__init__" or not init.args.args:
        return
    if node.value.id != init.args.args[0].arg:
        return
    asked = [
        (name, Test(name, Kind.OTHER, test, holds=holds, crossed=False))
        for condition, implied in conditions.around(node, module.table, init)
        for name, test, holds in _asked(condition, implied)
    ]
    if asked:
        kept = _kept(node, init, module, tracer)
        yield from (test for name, test in asked if name == kept)


def _asked(test: ast.expr, holds: bool) -> Iterator[tuple[str, ast.Call, bool]]:
    """Each name that a condition asks for its class, and whether it is of it."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from _asked(operand, not holds)
        case ast.BoolOp(op=op, values=values) if isinstance(op, ast.And) is holds:
            for value in values:
                yield from _asked(value, holds)
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), _], keywords=[]):
            yield name, test, holds


def _kept(node: ast.Attribute, init: ast.FunctionDef, module: Module, tracer: Tracer) -> str:
    """The parameter that an attribute surely is there, if it is one."""
    cls = module.table.parents.get(init)
    if not isinstance(cls, ast.ClassDef):
        return ""
    stores = list(tracer.stores(Class(cls, module), node.attr))
    if len(stores) != 1:
        return ""
    owner, method, definition = stores[0]
    name = _stored_parameter(definition.value, method, owner.module)
    if not name or method.name != "__init__":
        return ""
    before = _before(node, init, module)
    if any(_hands_on(statement, init.args.args[0].arg) for statement in before):
        return ""
    if method is not init and any(
        _hands_on(statement, method.args.args[0].arg) for statement in method.body
    ):
        return ""
    if method is init:
        return name if module.table.statement(definition.node) in before else ""
    if [tracer.evaluate(base, module) for base in cls.bases] != [frozenset({owner})]:
        return ""
    for statement in before:
        call = statement.value if isinstance(statement, ast.Expr) else None
        called = call.func if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or not isinstance(called, ast.Attribute):
            continue
        above = called.value.func if isinstance(called.value, ast.Call) else called.value
        if called.attr == "__init__" and last_name(above) == "super":
            return _stored_parameter(argument_of(call, method, name, bound=True), init, module)
    return ""


def _hands_on(statement: ast.stmt, own: str) -> bool:
    """Whether a function may set attributes of the object, which it is given: ``wrap(self)``."""
    return any(
        isinstance(node, ast.Call)
        and last_name(node.func) not in SUPER
        and any(isinstance(given, ast.Name) and given.id == own for given in given_arguments(node))
        for node in walk(statement)
    )


def _before(node: ast.expr, init: ast.FunctionDef, module: Module) -> list[ast.stmt]:
    """The statements of ``__init__`` that have surely run."""
    around = {*module.table.ancestors(node)}
    last = next((i for i, each in enumerate(init.body) if each in around), 0)
    return init.body[:last]


def _stored_parameter(value: object, method: ast.AST, module: Module) -> str:
    """The name of a parameter, if that is what a value is, and it is never given another."""
    scope = module.table.scopes.get(method)
    if not isinstance(value, ast.Name) or scope is None:
        return ""
    kinds = {binding.kind for binding in scope.bindings.get(value.id, ())}
    return value.id if kinds == {Kind.PARAMETER} else ""
