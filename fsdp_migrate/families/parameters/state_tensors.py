"""Which optimizer's state an expression is of, or is a tensor of.

``optimizer.state`` has a dictionary for each parameter, and that has tensors by name: three steps.
They are followed back from where they are used, over names, loops, functions and files. Such a
tensor is sharded as its parameter is, and an evaluation never gathers it.

What a place may be is what other places are, a step further inside maybe. Each place is asked once
where that comes from, and what is found at one goes on to those that asked for it.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum

from fsdp_migrate.analysis.flow import Definition
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Display, Generated
from fsdp_migrate.families.parameters import other_branches
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.listed_parts import PARTS
from fsdp_migrate.families.training_loop.sharded_alike import ELEMENTWISE
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

STATE = "state"
LISTED = frozenset({"list", "tuple", "sorted", "reversed", "filter", "iter"})
TAKING = frozenset({"get", "pop", "setdefault"})
COPYING = frozenset({"copy", "deepcopy", "dict", "OrderedDict"})
LEAVES = frozenset({"tree_leaves", "tree_iter"})
DEEP = 3  # dictionaries inside of dictionaries
PLAIN = frozenset({"step"})  # which counts, and is of no parameter's shape


class Step(IntEnum):
    """How far inside of an optimizer's state something is."""

    DICTIONARY = 0  # ``optimizer.state_dict()``
    WHOLE = 1  # ``optimizer.state``
    OF_PARAMETER = 2
    TENSOR = 3


@dataclass(frozen=True)
class Held:
    """Something in the state of an optimizer, as that is written in its file."""

    step: Step
    optimizer: ast.expr
    module: Module


@dataclass(frozen=True)
class _Place:
    """An expression, or with ``unpack`` what a loop over it gives, or what stands there in that.

    Where a function gave it back, ``asked`` is what got it: that call's arguments are what the
    function's parameters are, and not those of its other callers.
    """

    node: ast.expr
    module: Module
    unpack: tuple[int, ...] | None = None
    asked: ast.expr | None = None


# What becomes of each step on the way from one place to another; of None, nothing.
_Change = tuple[Step | None, Step | None, Step | None, Step | None]
SAME: _Change = (Step.DICTIONARY, Step.WHOLE, Step.OF_PARAMETER, Step.TENSOR)
INSIDE: _Change = (Step.WHOLE, Step.OF_PARAMETER, Step.TENSOR, None)
BY_KEY: _Change = (None, Step.OF_PARAMETER, Step.TENSOR, None)
OF_TENSORS: _Change = (None, None, None, Step.TENSOR)
TO_LEAVES: _Change = (Step.TENSOR, Step.TENSOR, Step.TENSOR, Step.TENSOR)

_Source = tuple[_Place, _Change]


def tensors_of(node: ast.expr, study: Study, module: Module) -> list[Held]:
    """The optimizers of whose states an expression may be a tensor."""
    return [each for each in held_in(node, study, module) if each.step is Step.TENSOR]


def held_in(node: ast.expr, study: Study, module: Module) -> list[Held]:
    """What an expression may be in the states of optimizers."""
    return _found(_Place(node, module), study)


def elements_in(node: ast.expr, study: Study, module: Module) -> list[Held]:
    """The optimizers of whose states a loop over an expression gives the tensors."""
    found = _found(_Place(node, module, ()), study)
    return [each for each in found if each.step is Step.TENSOR]


def _found(place: _Place, study: Study) -> list[Held]:
    return study.cache(_known).of(place, study) if has_states(study) else []


def has_states(study: Study) -> bool:
    """Whether anything of the project asks for a state."""
    return study.cache(_mentioned)


def _mentioned(study: Study) -> bool:
    return any(
        module.table.attributes_by_name.named(STATE)
        or any(text.value == STATE for text in module.table.strings)
        for module in study.project.modules
    )


@dataclass
class _Known:
    """What was found at the places that were asked about, and who asked them."""

    held: dict[_Place, dict[Held, None]] = field(default_factory=dict)
    asking: dict[_Place, list[_Source]] = field(default_factory=lambda: defaultdict(list))

    def of(self, place: _Place, study: Study) -> list[Held]:
        waiting = [place]
        while waiting:
            each = waiting.pop()
            if each in self.held:
                continue
            self.held[each] = {}
            for held in _written(each, study):
                self._put(each, held)
            for source, change in _sources(each, study):
                self.asking[source].append((each, change))
                for held in tuple(self.held.get(source, ())):
                    self._put(each, held, change)
                waiting.append(source)
        return list(self.held[place])

    def _put(self, place: _Place, held: Held, change: _Change = SAME) -> None:
        waiting = [(place, held, change)]
        for where, what, becoming in waiting:
            step = becoming[what.step]
            found = replace(what, step=step) if step is not None else None
            if found is not None and found not in self.held[where]:
                self.held[where][found] = None
                waiting += [(asking, found, after) for asking, after in self.asking[where]]


def _known(study: Study) -> _Known:
    return _Known()


def _written(place: _Place, study: Study) -> Iterator[Held]:
    """What an expression says itself of an optimizer's state."""
    match place:
        case _Place(ast.Attribute(value=owner, attr="state"), module, None):
            yield Held(Step.WHOLE, owner, module)
        case _Place(ast.Call(func=ast.Attribute(value=owner, attr="state_dict")), module, None):
            if not other_branches.is_of_no_model(owner, module, study):
                yield Held(Step.DICTIONARY, owner, module)


def _sources(place: _Place, study: Study) -> Iterator[_Source]:
    """Where what stands at a place comes from."""
    if place.unpack is None:
        yield from _of_expression(place, study)
    else:
        yield from _of_elements(place, place.unpack, study)


def _of_expression(place: _Place, study: Study) -> Iterator[_Source]:
    match place.node:
        case ast.Attribute(value=inner, attr=attr) if attr in PARTS:
            yield replace(place, node=inner), OF_TENSORS
        case ast.Attribute():  # self.state = optimizer.state
            for value in study.values(place.node, place.module):
                if isinstance(value.node, ast.expr) and value.node is not place.node:
                    yield _from(place, value.node, value.module), SAME
        case ast.Subscript(slice=ast.Slice() | ast.Tuple()):
            return
        case ast.Subscript(value=ast.Call(func=ast.Name(id=name)) as inner) if name in LISTED:
            yield replace(place, node=inner, unpack=()), SAME
        case ast.Call(func=ast.Name(id="next"), args=[inner, *_]):
            yield replace(place, node=inner, unpack=()), SAME
        case (
            ast.Subscript(value=ast.List(elts=given) | ast.Tuple(elts=given))
            | ast.Subscript(value=ast.Dict(values=given))
            | ast.BoolOp(values=given)
        ):  # [value][0]
            for each in given:
                yield replace(place, node=each), SAME
        case ast.Subscript(value=inner, slice=key):
            yield from _taken(place, inner, key)
            for entry in _entries(inner, key, place, study, DEEP):
                yield entry, SAME
        case ast.Call(func=ast.Attribute(value=inner, attr=attr), args=[key, *_]) if attr in TAKING:
            yield from _taken(place, inner, key)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)) if attr in ELEMENTWISE:
            yield replace(place, node=inner), OF_TENSORS
        case ast.Call(func=ast.Attribute(value=inner, attr="copy"), args=[]):
            yield replace(place, node=inner), SAME
        case ast.Call(func=function, args=[inner]) if last_name(function) in COPYING:
            yield replace(place, node=inner), SAME
        case ast.NamedExpr(value=inner) | ast.Call(func=ast.Lambda(body=inner)):
            yield replace(place, node=inner), SAME
        case ast.Await(value=inner):
            yield replace(place, node=inner), SAME
        case ast.Call():  # of a function that gives one back
            for value in study.values(place.node, place.module):
                if isinstance(value.node, ast.expr) and value.node is not place.node:
                    yield _from(place, value.node, value.module), SAME
        case ast.IfExp(body=body, orelse=orelse):
            yield replace(place, node=body), SAME
            yield replace(place, node=orelse), SAME
        case ast.Name():
            for definition in study.defined_by(place.node, place.module):
                for source in _of_definition(definition, place, study):
                    yield source, SAME
                if definition.kind is Kind.ASSIGN and definition.unpack:
                    for value in study.values(place.node, place.module):
                        if isinstance(value.node, ast.expr) and value.node is not place.node:
                            yield _from(place, value.node, value.module), SAME


def _entries(
    owner: ast.expr, key: ast.expr, place: _Place, study: Study, depth: int
) -> Iterator[_Place]:
    """What a dictionary of the program's may have under a key: ``{"optim": opt.state_dict()}``, or
    ``saved[name] = {"optim": opt.state_dict()}``."""
    written: list[tuple[ast.expr | None, ast.expr, Module]] = []
    for node, module in _dictionaries(owner, place, study, depth):
        if isinstance(node, ast.Dict):
            written += zip(node.keys, node.values, [module] * len(node.keys), strict=True)
        for added, where in study.tracer.additions(Display(node, module)):
            stored = where.table.parents[added]
            target = stored.targets[0] if isinstance(stored, ast.Assign) else None
            written.append((getattr(target, "slice", None), added, where))
    for other, value, where in written:
        names = [k.value for k in (key, other) if isinstance(k, ast.Constant)]
        if len(names) < 2 or names[0] == names[1]:
            yield _from(place, value, where)


def _dictionaries(
    owner: ast.expr, place: _Place, study: Study, depth: int
) -> Iterator[tuple[ast.expr, Module]]:
    """Where dictionaries are made that an expression may be, also as entries of others."""
    for value in study.values(owner, place.module):
        if isinstance(value, Display) and isinstance(value.node, ast.Dict):
            yield value.node, value.module
    if isinstance(owner, ast.Subscript) and depth:
        for entry in _entries(owner.value, owner.slice, place, study, depth - 1):
            yield from _dictionaries(entry.node, entry, study, depth - 1)


def _taken(place: _Place, inner: ast.expr, key: ast.expr) -> Iterator[_Source]:
    """What a key takes out of a state."""
    of_dictionary = isinstance(key, ast.Constant) and key.value == STATE
    if not (isinstance(key, ast.Constant) and key.value in PLAIN):
        yield replace(place, node=inner), INSIDE if of_dictionary else BY_KEY


def _of_definition(definition: Definition, place: _Place, study: Study) -> Iterator[_Place]:
    given = definition.value
    if definition.kind is Kind.ELEMENT and given is not None:
        yield replace(place, node=given, unpack=definition.unpack)
    elif definition.kind is Kind.ASSIGN and given is not None and not definition.unpack:
        yield replace(place, node=given)
    elif definition.kind is Kind.PARAMETER:
        yield from _arguments(definition.node, place, study)
        function = _function(definition.node, place.module)
        if function is not None and place.asked is None:
            for each, where in applied_functions.given_each(function, definition.path, study):
                yield _Place(each, where, ())


def _function(
    parameter: ast.AST, module: Module
) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | None:
    return next((p for p in module.table.ancestors(parameter) if isinstance(p, FUNCTIONS)), None)


def _arguments(parameter: ast.AST, place: _Place, study: Study) -> Iterator[_Place]:
    """What the callers of a function give a parameter of it."""
    function = _function(parameter, place.module)
    if not isinstance(parameter, ast.arg) or function is None or isinstance(function, ast.Lambda):
        return
    for caller in study.tracer.callers(function, place.module):
        argument = caller.argument(function, parameter.arg)
        if argument is not None and place.asked in {None, caller.call}:
            yield _Place(argument, caller.module, place.unpack)


def _of_elements(place: _Place, unpack: tuple[int, ...], study: Study) -> Iterator[_Source]:
    """Where that comes from which a loop over an expression gives."""
    node = place.node
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="values"), args=[]):
            yield replace(place, node=inner, unpack=None), INSIDE
            return
        case ast.Call(func=ast.Attribute(value=inner, attr="items"), args=[]):
            if not unpack or unpack[0] == 1:
                yield replace(place, node=inner, unpack=None), INSIDE
            return
        case ast.Call(func=function, args=[inner, *_]) if last_name(function) in LEAVES:
            yield replace(place, node=inner, unpack=None), TO_LEAVES
            return
        case ast.Call(func=ast.Name(id="enumerate"), args=[inner, *_]):
            if not unpack or unpack[0] == 1:
                yield replace(place, node=inner, unpack=unpack[1:]), SAME
            return
        case ast.Call(func=ast.Name(id="zip"), args=given):
            if unpack and unpack[0] < len(given):
                yield replace(place, node=given[unpack[0]], unpack=unpack[1:]), SAME
            return
        case ast.Call(func=ast.Name(id=name), args=given) if name in LISTED and given:
            yield replace(place, node=given[-1]), SAME
            return
        case ast.ListComp(elt=each) | ast.SetComp(elt=each) | ast.GeneratorExp(elt=each):
            yield _at(replace(place, node=each)), SAME
            return
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            for each in parts:
                yield _at(replace(place, node=each)), SAME
        case ast.Name():
            found = study.defined_by(node, place.module)
            told = [d for d in found if d.kind in {Kind.ASSIGN, Kind.PARAMETER} and not d.unpack]
            for definition in told:
                for source in _of_definition(definition, place, study):
                    yield source, SAME
            if told and len(told) == len(found):
                return
    for value in study.values(node, place.module):
        if isinstance(value, Generated):
            for given_on in value.yields:
                if given_on.value is not None:
                    source = _from(place, given_on.value, value.function.module)
                    yield source if isinstance(given_on, ast.YieldFrom) else _at(source), SAME
        elif isinstance(value.node, ast.expr) and value.node is not node:
            yield _from(place, value.node, value.module), SAME
        if isinstance(value, Display):
            for added, where in study.tracer.additions(value):
                yield _at(_from(place, added, where)), SAME


def _from(place: _Place, node: ast.expr, module: Module) -> _Place:
    """What an expression was traced to, in a function maybe that gave it back."""
    here = enclosing_function(place.module, place.node)
    asked = place.asked if enclosing_function(module, node) is here else place.node
    return replace(place, node=node, module=module, asked=asked)


def _at(place: _Place) -> _Place:
    """What an element is, or what stands at a place of it."""
    node, unpack = place.node, place.unpack
    if unpack and isinstance(node, ast.Tuple) and unpack[0] < len(node.elts):
        node = node.elts[unpack[0]]
    return replace(place, node=node, unpack=None)
