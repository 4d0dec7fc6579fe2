"""Models that nothing but a type tells of: ``def save(model: FSDP)`` where no caller is seen."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Constant, Unknown, Value, Values
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax import string_annotations
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.type_expressions import is_generic

MAX_ALIASES = 4


@dataclass(frozen=True)
class Declared:
    """What a type says: an FSDP1 model, something else, or one of both."""

    model: bool = False
    other: bool = False

    def __or__(self, more: Declared) -> Declared:
        return Declared(self.model or more.model, self.other or more.other)


NOTHING = Declared()
MODEL = Declared(model=True)
OTHER = Declared(other=True)


def model(values: Values, tracer: Tracer) -> Declared:
    """What annotations say of a value that nothing else is known about."""
    found = NOTHING
    for value in values:
        if isinstance(value, Constant) and value.value is None:
            continue
        said = _declared(value, tracer)
        if not said.model:
            return NOTHING
        found |= said
    return found


def _declared(value: Value, tracer: Tracer) -> Declared:
    if not isinstance(value, Unknown) or not isinstance(value.node, ast.arg):
        return NOTHING
    annotation = value.node.annotation
    return type_of(annotation, value.module, tracer) if annotation is not None else NOTHING


def type_of(node: ast.expr, module: Module, tracer: Tracer, depth: int = 0) -> Declared:
    """What a type expression means: unions and aliases are followed, containers are not."""
    match node:
        case ast.Constant(value=None):
            return NOTHING
        case ast.Constant(value=str(text)):
            inner = string_annotations.parsed(text)
            return _named(inner, module, tracer) if inner is not None else OTHER
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return type_of(left, module, tracer, depth) | type_of(right, module, tracer, depth)
        case ast.Subscript(value=form, slice=inside) if is_generic(form, module.table):
            members = inside.elts if isinstance(inside, ast.Tuple) else [inside]
            match last_name(form):
                case "Annotated":
                    members = members[:1]
                case "Optional" | "Union":
                    pass
                case _:
                    return OTHER
            found = NOTHING
            for member in members:
                found |= type_of(member, module, tracer, depth)
            return found
        case ast.Name() | ast.Attribute():
            return _of_name(node, module, tracer, depth)
    return OTHER


def _of_name(
    node: ast.Name | ast.Attribute, module: Module, tracer: Tracer, depth: int
) -> Declared:
    names = tracer.project.external(node, module)
    if names:
        if not any(map(_is_model, names)):
            return OTHER
        return MODEL | OTHER if tracer.project.look_alikes(node, module) else MODEL
    if depth < MAX_ALIASES and isinstance(node, ast.Name):
        for owner, value in _aliased(node, module, tracer):
            return type_of(value, owner, tracer, depth + 1)
    return OTHER


def _aliased(node: ast.Name, module: Module, tracer: Tracer) -> list[tuple[Module, ast.expr]]:
    """What a name of the project stands for, when it is given to it by one assignment."""
    owner, name = module, node.id
    for _ in range(MAX_ALIASES):
        bindings = owner.table.module.bindings.get(name, [])
        if len(bindings) != 1:
            return []
        (binding,) = bindings
        if binding.kind is Kind.ASSIGN and binding.value is not None and not binding.unpack:
            return [(owner, binding.value)]
        resolved = (
            tracer.project.resolve(binding.qualified, owner)
            if binding.kind is Kind.IMPORT
            else None
        )
        if resolved is None or not resolved[1] or "." in resolved[1]:
            return []
        owner, name = resolved
    return []


def _named(node: ast.expr, module: Module, tracer: Tracer) -> Declared:
    """A quoted type. Its names have no scope of their own: those of the module count."""
    match node:
        case ast.Constant(value=None):
            return NOTHING
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return _named(left, module, tracer) | _named(right, module, tracer)
        case ast.Subscript(value=form, slice=inside) if last_name(form) in {"Optional", "Union"}:
            found = NOTHING
            for member in inside.elts if isinstance(inside, ast.Tuple) else [inside]:
                found |= _named(member, module, tracer)
            return found
        case ast.Name() | ast.Attribute():
            head, _, rest = ast.unparse(node).partition(".")
            for binding in module.table.imports:
                if binding.name == head:
                    qualified = f"{binding.qualified}.{rest}" if rest else binding.qualified
                    if any(map(_is_model, tracer.project.canonical(qualified, module))):
                        return MODEL
    return OTHER


def _is_model(name: str) -> bool:
    return fsdp1.canonical(name) == fsdp1.FSDP
