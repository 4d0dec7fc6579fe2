"""Which optimizer's state an expression is of, or is a tensor of.

``optimizer.state`` has a dictionary for each parameter, and that has tensors by name: three steps.
They are followed back from where they are used, over names, loops, functions and files. Such a
tensor is sharded as its parameter is, and an evaluation never gathers it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum

from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Display, Generated
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.listed_parts import PARTS
from fsdp_migrate.families.training_loop.reductions import ELEMENTWISE
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

STATE = "state"
LISTED = frozenset({"list", "tuple", "sorted", "reversed", "filter", "iter"})
TAKING = frozenset({"get", "pop", "setdefault"})
COPYING = frozenset({"copy", "deepcopy", "dict", "OrderedDict"})
LEAVES = frozenset({"tree_leaves", "tree_iter"})
PLAIN = frozenset({"step"})  # which counts, and is of no parameter's shape
DEEPEST = 10  # names, loops and functions on the way to the optimizer


class Step(IntEnum):
    """How far inside of an optimizer's state something is."""

    DICTIONARY = 0  # ``optimizer.state_dict()``
    WHOLE = 1  # ``optimizer.state``
    OF_PARAMETER = 2
    TENSOR = 3


@dataclass(frozen=True, eq=False)
class Held:
    """Something in the state of an optimizer, as that is written in its file."""

    step: Step
    optimizer: ast.expr
    module: Module


def tensors_of(node: ast.expr, study: Study, module: Module) -> list[Held]:
    """The optimizers of whose states an expression may be a tensor."""
    return [each for each in held_in(node, study, module) if each.step is Step.TENSOR]


def held_in(node: ast.expr, study: Study, module: Module) -> list[Held]:
    """What an expression may be in the states of optimizers."""
    known = study.cache(_known)
    if node not in known:
        known[node] = []  # in a circle, nothing is added
        known[node] = list(_held(node, study, module, DEEPEST)) if has_states(study) else []
    return known[node]


def elements_in(node: ast.expr, study: Study, module: Module) -> list[Held]:
    """The optimizers of whose states a loop over an expression gives the tensors."""
    found = _elements(node, (), study, module, DEEPEST) if has_states(study) else ()
    return [each for each in found if each.step is Step.TENSOR]


def _named(study: Study) -> dict[tuple[ast.Name, int], list[Held]]:
    return {}


def _known(study: Study) -> dict[ast.expr, list[Held]]:
    return {}


def has_states(study: Study) -> bool:
    """Whether anything of the project asks for a state."""
    return study.cache(_mentioned)


def _mentioned(study: Study) -> bool:
    return any(
        module.table.attributes_by_name.named(STATE)
        or any(text.value == STATE for text in module.table.strings)
        for module in study.project.modules
    )


def _held(node: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    if not depth:
        return
    match node:
        case ast.Attribute(value=owner, attr="state"):
            yield Held(Step.WHOLE, owner, module)
            yield from _kept(node, study, module, depth)
        case ast.Call(func=ast.Attribute(value=owner, attr="state_dict")):
            yield Held(Step.DICTIONARY, owner, module)
        case ast.Attribute(value=inner, attr=attr) if attr in PARTS:
            yield from _tensors(inner, study, module, depth)
        case ast.Subscript(slice=ast.Slice() | ast.Tuple()):
            return
        case ast.Subscript(value=ast.Call(func=ast.Name(id=name)) as inner) if name in LISTED:
            yield from _elements(inner, (), study, module, depth)
        case ast.Call(func=ast.Name(id="next"), args=[inner, *_]):
            yield from _elements(inner, (), study, module, depth)
        case ast.Subscript(value=inner, slice=key):
            yield from _taken(inner, key, study, module, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr), args=[key, *_]) if attr in TAKING:
            yield from _taken(inner, key, study, module, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in ELEMENTWISE:
            yield from _tensors(inner, study, module, depth)
        case ast.Call(func=ast.Attribute(value=inner, attr="copy"), args=[]):
            yield from _held(inner, study, module, depth)
        case ast.Call(func=function, args=[inner]) if last_name(function) in COPYING:
            yield from _held(inner, study, module, depth)
        case ast.NamedExpr(value=inner) | ast.Call(func=ast.Lambda(body=inner)):
            yield from _held(inner, study, module, depth)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _held(body, study, module, depth)
            yield from _held(orelse, study, module, depth)
        case ast.Name():
            known = study.cache(_named)
            if (node, depth) not in known:
                known[node, depth] = []  # in a circle, nothing is added
                given = study.defined_by(node, module)
                known[node, depth] = [
                    h for d in given for h in _defined(d, study, module, depth - 1)
                ]
            yield from known[node, depth]
        case ast.Attribute():
            yield from _kept(node, study, module, depth)


def _kept(node: ast.Attribute, study: Study, module: Module, depth: int) -> Iterator[Held]:
    """As :func:`_held`, of what an attribute was assigned: ``self.state = optimizer.state``."""
    for value in study.values(node, module):
        if isinstance(value.node, ast.expr) and value.node is not node:
            yield from _held(value.node, study, value.module, depth - 1)


def _taken(
    inner: ast.expr, key: ast.expr, study: Study, module: Module, depth: int
) -> Iterator[Held]:
    """What a key takes out of a state."""
    if isinstance(key, ast.Constant) and key.value in PLAIN:
        return
    of_dictionary = isinstance(key, ast.Constant) and key.value == STATE
    for each in _inside(inner, study, module, depth):
        if of_dictionary or each.step is not Step.WHOLE:
            yield each


def _inside(node: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    """What the values of a dictionary are that an expression may be."""
    for each in _held(node, study, module, depth):
        if each.step < Step.TENSOR:
            yield replace(each, step=Step(each.step + 1))


def _tensors(node: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    yield from (h for h in _held(node, study, module, depth) if h.step is Step.TENSOR)


def _defined(definition: Definition, study: Study, module: Module, depth: int) -> Iterator[Held]:
    given = definition.value
    if definition.kind is Kind.ELEMENT and given is not None:
        yield from _elements(given, definition.unpack, study, module, depth)
    elif definition.kind is Kind.ASSIGN and given is not None and not definition.unpack:
        yield from _held(given, study, module, depth)
    elif definition.kind is Kind.PARAMETER:
        for argument, where in _arguments(definition.node, study, module):
            yield from _held(argument, study, where, depth)
        function = _function(definition.node, module)
        if function is not None:
            for each, where in applied_functions.given_each(function, definition.path, study):
                yield from _elements(each, (), study, where, depth)


def _function(
    parameter: ast.AST, module: Module
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    return next((p for p in module.table.ancestors(parameter) if isinstance(p, FUNCTIONS)), None)


def _arguments(
    parameter: ast.AST, study: Study, module: Module
) -> Iterator[tuple[ast.expr, Module]]:
    """What the callers of a function give a parameter of it."""
    function = _function(parameter, module)
    if not isinstance(parameter, ast.arg) or function is None or isinstance(function, ast.Lambda):
        return
    for caller in study.tracer.callers(function, module):
        argument = caller.argument(function, parameter.arg)
        if argument is not None:
            yield argument, caller.module


def _elements(
    node: ast.expr, unpack: tuple[int, ...], study: Study, module: Module, depth: int
) -> Iterator[Held]:
    """What a loop over an expression gives, or what stands at a place of that."""
    if not depth:
        return
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="values"), args=[]):
            yield from _inside(inner, study, module, depth)
            return
        case ast.Call(func=ast.Attribute(value=inner, attr="items"), args=[]):
            if not unpack or unpack[0] == 1:
                yield from _inside(inner, study, module, depth)
            return
        case ast.Call(func=function, args=[inner, *_]) if last_name(function) in LEAVES:
            for held in _held(inner, study, module, depth):
                yield replace(held, step=Step.TENSOR)
            return
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            if not unpack or unpack[0] == 1:
                yield from _elements(inner, unpack[1:], study, module, depth)
            return
        case ast.Call(func=ast.Name(id="zip"), args=given):
            if unpack and unpack[0] < len(given):
                yield from _elements(given[unpack[0]], unpack[1:], study, module, depth)
            return
        case ast.Call(func=ast.Name(id=name), args=given) if name in LISTED and given:
            yield from _elements(given[-1], unpack, study, module, depth)
            return
        case ast.ListComp(elt=each) | ast.SetComp(elt=each) | ast.GeneratorExp(elt=each):
            yield from _at(each, unpack, study, module, depth)
            return
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for each in parts:
                yield from _at(each, unpack, study, module, depth)
            return
        case ast.Name():
            for definition in study.defined_by(node, module):
                if definition.kind is Kind.PARAMETER:
                    for argument, where in _arguments(definition.node, study, module):
                        yield from _elements(argument, unpack, study, where, depth - 1)
    yield from _of_values(node, unpack, study, module, depth - 1)


def _of_values(
    node: ast.expr, unpack: tuple[int, ...], study: Study, module: Module, depth: int
) -> Iterator[Held]:
    """As :func:`_elements`, of the lists and generators that an expression may be."""
    for value in study.values(node, module):
        if isinstance(value, Generated):
            for each in value.yields:
                if isinstance(each, ast.YieldFrom):
                    found = _elements(each.value, unpack, study, value.function.module, depth)
                    yield from found
                elif each.value is not None:
                    yield from _at(each.value, unpack, study, value.function.module, depth)
        elif isinstance(value.node, ast.expr) and value.node is not node:
            yield from _elements(value.node, unpack, study, value.module, depth)
        if isinstance(value, Display):
            for added, where in study.tracer.additions(value):
                yield from _at(added, unpack, study, where, depth)


def _at(
    node: ast.expr, unpack: tuple[int, ...], study: Study, module: Module, depth: int
) -> Iterator[Held]:
    """What an element is, or what stands at a place of it."""
    if unpack and isinstance(node, ast.Tuple) and unpack[0] < len(node.elts):
        node = node.elts[unpack[0]]
    yield from _held(node, study, module, depth)
