"""Which modules policies make units of, as far as the code names their classes or lists them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Display, External, Function, Made
from fsdp_migrate.families.wrapping import policies
from fsdp_migrate.families.wrapping.module_values import ModuleValues
from fsdp_migrate.families.wrapping.policies import Kind, Policy
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import walk

LISTING = frozenset({"list", "set", "tuple"})


def named_units(constructor: Constructor, study: Study) -> set[object]:
    """Definitions of classes, names of classes from outside, and code that makes single modules."""
    found: set[object] = set()
    for policy in _each(policies.read_policies(constructor, study) or ()):
        argument = policy.argument
        if argument is None:
            continue
        if policy.kind is Kind.CLASSES:
            found |= set(_classes(argument, policy.module, study))
        elif policy.kind is Kind.PREDICATE:
            for function in study.values(argument, policy.module):
                if isinstance(function, Function):
                    found |= set(_picked(function, study))
    return found


def _each(read: Iterable[Policy]) -> Iterator[Policy]:
    """The policies, and those that are joined in them."""
    for policy in read:
        yield policy
        if policy.kind is Kind.ANY:
            yield from (each for part in policy.parts for each in _each(part))


def _classes(node: ast.expr, module: Module, study: Study) -> Iterator[object]:
    for each in walk(node):
        if isinstance(each, (ast.Name, ast.Attribute)):
            for value in study.values(each, module):
                if isinstance(value, Class):
                    yield value.node
                elif isinstance(value, External):
                    yield value.name


def _picked(function: Function, study: Study) -> Iterator[object]:
    """What a predicate picks that asks nothing else: ``isinstance(m, Block)``, ``m in units``."""
    match function.node:
        case ast.Lambda(args=ast.arguments(args=[asked]), body=answer):
            yield from _answered(answer, asked.arg, function.module, study)
        case ast.FunctionDef(
            args=ast.arguments(args=[asked]), body=[*_, ast.Return(value=ast.expr() as answer)]
        ) if sum(isinstance(n, ast.Return) for n in walk(function.node)) == 1:
            yield from _answered(answer, asked.arg, function.module, study)


def _answered(answer: ast.expr, asked: str, module: Module, study: Study) -> Iterator[object]:
    match answer:
        case ast.BoolOp(op=ast.Or(), values=values):
            for value in values:
                yield from _answered(value, asked, module, study)
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=name), classes]):
            if name == asked:
                yield from _classes(classes, module, study)
        case ast.Compare(left=ast.Name(id=name), ops=[ast.In()], comparators=[listed]):
            if name == asked:
                found: set[ast.AST] = set()
                _collect(listed, module, study, found)
                yield from found


def _collect(node: ast.expr, module: Module, study: Study, found: set[ast.AST]) -> None:
    """Add the code that makes the modules of a list."""
    match node:
        case ast.Starred(value=inner):
            return _collect(inner, module, study, found)
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in LISTING:
            return _collect(inner, module, study, found)
    for value in study.values(node, module):
        if value.node in found:
            continue
        found.add(value.node)
        match value:
            case Display(node=ast.List(elts=elements) | ast.Tuple(elts=elements)):
                for element in elements:
                    _collect(element, value.module, study, found)
                for added, where in study.tracer.additions(value):
                    _collect(added, where, study, found)
            case Made():
                inside = ModuleValues(study).elements(frozenset({value}))
                found.update(each.node for each in inside if isinstance(each, Made))
    return None
