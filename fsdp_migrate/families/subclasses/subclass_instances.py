"""Where instances of a subclass of FSDP are made."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.registries import registry_of
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax import type_expressions


def class_at(site: Site) -> Class:
    return Class(site.definition, site.module)


def is_made_out_of_sight(cls: Class, study: Study) -> bool:
    """Whether code that cannot be followed may make instances of a class."""
    for decorator in cls.node.decorator_list:
        if registry_of(decorator) is None or not any(study.tracer.built(cls)):
            return True
    for module in study.project.modules:
        if not module.mentions(cls.node.name):
            continue
        if not any(study.tracer.built(cls)) and any(
            string.value == cls.node.name and not _is_listed(string, module)
            for string in module.table.strings
        ):
            return True  # getattr(module, "Policy")
        mentions: list[ast.expr] = [n for n in module.table.names if n.id == cls.node.name]
        mentions += [a for a in module.table.attributes if a.attr == cls.node.name]
        for mention in mentions:
            if _hands_on(mention, module) and any(
                v.node is cls.node for v in study.values(mention, module)
            ):
                return True
    return False


def _is_listed(string: ast.Constant, module: Module) -> bool:
    """Whether a string stands in ``__all__`` or is a type."""
    for parent in module.table.ancestors(string):
        match parent:
            case ast.Assign(targets=[ast.Name(id="__all__")]):
                return True
            case ast.AnnAssign() | ast.arg() | ast.FunctionDef() | ast.AsyncFunctionDef():
                return type_expressions.is_type(string, module.table)
    return False


def _hands_on(mention: ast.expr, module: Module) -> bool:
    """Whether a class is handed on: used otherwise than called, derived from, or asked for."""
    if not isinstance(getattr(mention, "ctx", None), ast.Load):
        return False
    child: ast.AST = mention
    for parent in module.table.ancestors(mention):
        match parent:
            case ast.Call(func=func) if func is child:
                return False
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass" | "super")):
                return False
            case ast.ClassDef() | ast.Attribute() | ast.Compare():
                return False
            case ast.Tuple() | ast.BinOp():
                child = parent
            case _:
                return not type_expressions.is_type(mention, module.table)
    return True


def instance_calls(site: Site, study: Study) -> Iterator[tuple[ast.Call, Module]]:
    """Where instances of the class, or of one derived from it, are made."""
    cls = class_at(site)
    nodes = {each.node: each.node.name for each in (cls, *study.tracer.subclasses(cls))}
    seen: set[ast.Call] = set()
    for each in (cls, *study.tracer.subclasses(cls)):
        for call, module in study.tracer.built(each):
            if call not in seen:
                seen.add(call)
                yield call, module
    for call, module in study.tracer.calls_named(*dict.fromkeys(nodes.values())):
        made = any(
            isinstance(v, Class) and v.node in nodes for v in study.values(call.func, module)
        )
        if made and call not in seen:
            seen.add(call)
            yield call, module
