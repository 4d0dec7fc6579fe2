"""A part of a sharded model by another name: ``head = model.head``, ``self.net = model.module``,
``for block in model.blocks``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.families.wrapping.own_names import wrapped_by_now
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.scopes import Kind

LISTING = frozenset({"enumerate", "list", "reversed", "tuple", "zip", "getattr"})
OF_PARTS = frozenset({"children", "get_submodule", "modules", "named_children", "named_modules"})
OF_PARTS |= {"items", "values"}


def whole_of(parameter: ast.expr, module: Module, study: Study) -> ast.expr | None:
    """The sharded model that a path to a parameter leads through: ``model`` of
    ``model.head.weight``, and of ``block.weight`` in ``for block in model.blocks``."""
    owner = parameter
    while isinstance(owner, (ast.Attribute, ast.Subscript)):
        owner = owner.value
        if study.traced(owner, module) or wrapped_by_now(owner, module, study):
            return owner
    return next((w for w in wholes(owner, module, study) if study.traced(w, module)), None)


def wholes(node: ast.expr, module: Module, study: Study) -> Iterator[ast.expr]:
    """What a name, or an attribute of ``self``, was taken out of as a part, outermost last."""
    seen: set[tuple[ast.expr, bool]] = set()
    waiting = [(node, False)]
    for each, is_whole in waiting:
        if (each, is_whole) in seen:
            continue
        seen.add((each, is_whole))
        if is_whole:  # and not the thing itself by another name, of which a test may have told
            yield each
            if study.narrowing.verdict(each, module) is False:
                continue  # what it is given may be sharded, and is not where it comes here
        waiting += [(whole, True) for whole in _inside(each)]
        waiting += [(either, is_whole) for either in _either(each)]
        if isinstance(each, ast.Name) or _is_attribute_of_self(each, module):
            waiting += [(given, is_whole) for given in _given(each, module, study)]


def _inside(node: ast.expr) -> list[ast.expr]:
    """What an expression takes a part out of."""
    match node:
        case ast.Attribute(value=owner) | ast.Subscript(value=owner):
            return [owner]
        case ast.Call(func=ast.Name(id=name), args=given) if name in LISTING:
            return given
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in OF_PARTS:
            return [owner]
    return []


def _either(node: ast.expr) -> list[ast.expr]:
    """What an expression may be, one or the other."""
    match node:
        case ast.IfExp(body=one, orelse=other):
            return [one, other]
        case ast.BoolOp(values=given):
            return given
    return []


def _is_attribute_of_self(node: ast.expr, module: Module) -> bool:
    return isinstance(node, ast.Attribute) and is_self(node.value, module)


def _given(node: ast.expr, module: Module, study: Study) -> Iterator[ast.expr]:
    """What a name is given here, and an attribute of ``self`` anywhere in its class."""
    for definition in study.defined_by(node, module):
        if definition.kind in {Kind.ASSIGN, Kind.ELEMENT} and definition.value is not None:
            yield _zipped(definition.value, definition.unpack)
    if not isinstance(node, ast.Attribute):
        return
    cls = _class_around(node, module)
    for stored in module.table.attributes_by_name.named(node.attr):
        statement = module.table.parents[stored]
        is_same = access_path(stored) == access_path(node) and isinstance(stored.ctx, ast.Store)
        if is_same and isinstance(statement, ast.Assign) and _class_around(stored, module) is cls:
            yield statement.value


def _zipped(value: ast.expr, unpack: tuple[int, ...]) -> ast.expr:
    """``model.blocks`` of ``zip(others, model.blocks)``, for the second name of its loop."""
    match value:
        case ast.Call(func=ast.Name(id="zip"), args=given) if unpack:
            starred = any(isinstance(each, ast.Starred) for each in given)
            return value if starred or unpack[0] >= len(given) else given[unpack[0]]
    return value


def _class_around(node: ast.AST, module: Module) -> ast.AST | None:
    return next((p for p in module.table.ancestors(node) if isinstance(p, ast.ClassDef)), None)
