"""What may be a model because a model went into what made it, in a way that is not followed.

``passed(model)`` and ``Holder(model).net`` may be the model. An object of another class is none,
nor is what one of the model's own methods gives.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import exits
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import (
    Class,
    Computed,
    Display,
    External,
    Function,
    Made,
    Unknown,
    Value,
    Values,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import whole_objects
from fsdp_migrate.fsdp1.model_values import definitions, is_model, is_taken_for_model, models
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.scopes import Kind

# Built-in functions that give nothing back of what they are given.
NUMBERS_AND_TEXTS = frozenset({"bool", "hasattr", "hash", "id", "int", "len", "repr", "str"})
# Functions whose results are no models, whatever they are given.
OTHER_RESULTS = frozenset(
    {"id", "isinstance", "len", "list", "print", "repr", "signature", "str", "sum", "type"}
)
OTHER_LIBRARIES = ("deepspeed.",)  # whose models are none of FSDP's
OTHER_OBJECTS = re.compile(  # which have states as well
    r"optim|sched|scaler|loss|criterion|dataset|loader|sampler|args|config|cfg|metric|meter", re.I
)
HOLDING_ANYTHING = re.compile(r"args|config|cfg", re.I)  # and so models as well
CONTAINERS = frozenset({"torch.nn.ModuleDict", "torch.nn.ModuleList", "torch.nn.Sequential"})
WAITING = frozenset({"get", "result", "wait"})  # for what was called in another thread
DEEPEST = 8  # expressions that lead to one another
LONGEST = 30  # characters of code in a reason
Question = Callable[[ast.expr, Module], bool]
Origin = tuple[ast.expr, Module]
# Of an expression, and whether something is taken out: the least depth at which it is so, and the
# greatest at which it is not.
Known = dict[tuple[ast.expr, bool], tuple[int, int]]


def made_of_model(node: ast.expr, module: Module, tracer: Tracer) -> str:
    """Why what is made of an FSDP1 model may be that model; an empty text if it is not made of
    one."""

    return _ways_of_models(tracer).made_of(node, module)


def _ways_of_models(tracer: Tracer) -> Ways:
    """The ways of FSDP1's models, kept with what was found of them as long as values last: most
    questions lead to the same expressions."""
    known = tracer.found_out[_ways_of_models]
    if not known:
        known[None] = Ways(partial(_is_model, tracer), tracer)
    return cast(Ways, known[None])


def _is_model(tracer: Tracer, node: ast.expr, module: Module) -> bool:
    """Whether an expression is a model, or a function that gives one."""
    found = tracer.evaluate(node, module)
    if models(found, tracer) or is_taken_for_model(node, module, tracer):
        return True
    return any(_makes_models(value, tracer) for value in found)


def _makes_models(value: Value, tracer: Tracer, depth: int = 2) -> bool:
    """Whether a value is a function of the project's that gives an FSDP1 model, or a partial of
    one: what is handed it may call it, and give back what it gives."""
    match value:
        case Function(node=ast.Lambda(body=body)):
            given = [body]
        case Function(node=ast.FunctionDef() as node):
            given = [each.value for each in exits(node, value.module)[0] if each.value is not None]
        case Made(made_by="functools.partial", node=ast.Call(args=[bound, *_])) if depth:
            inner = tracer.evaluate(bound, value.module)
            return any(_makes_models(each, tracer, depth - 1) for each in inner)
        case _:
            return False
    return any(models(tracer.evaluate(each, value.module), tracer) for each in given)


def made_of(wanted: Question, node: ast.expr, module: Module, tracer: Tracer) -> str:
    """Why what is made of something that is ``wanted`` may be that; an empty text if it is not."""
    return Ways(wanted, tracer).made_of(node, module)


def _place(origin: Origin) -> tuple[str, int, int, int]:
    node, module = origin
    return module.display, node.lineno, node.col_offset, node.end_col_offset or 0


def handed_out(node: ast.expr, attr: str, module: Module, tracer: Tracer) -> str:
    """Why an attribute of an object may be a model's: its ``__getattr__`` asks a model for what the
    class has not. An empty text if it does not."""
    for value in tracer.evaluate(node, module):
        if not isinstance(value, Made) or not isinstance(value.callee, Class):
            continue
        if is_model(value, tracer) or tracer.has_attribute(value.callee, attr):
            continue
        for cls in tracer.lineage(value.callee):
            if any(models(tracer.evaluate(o, cls.module), tracer) for o in _delegates(cls)):
                return f"{cls.node.name} hands out what its model has"
    return ""


def _delegates(cls: Class) -> Iterator[ast.expr]:
    """``self.model`` of ``return getattr(self.model, name)`` in the ``__getattr__`` of a class."""
    for binding in cls.module.table.scopes[cls.node].bindings.get("__getattr__", ()):
        for call in ast.walk(binding.node):
            match call:
                case ast.Call(func=ast.Name(id="getattr"), args=[owner, *_]):
                    yield owner


def is_foreign_result(value: Value) -> bool:
    """Whether a value is what a function outside the project gives: not an object of a class."""
    if not isinstance(value, Made) or not isinstance(value.callee, External):
        return False
    owner, _, name = value.callee.name.rpartition(".")
    of_statics = fsdp1.canonical(owner) == fsdp1.FSDP and name != "fsdp_modules"  # states, settings
    is_class = name[:1].isupper() or name in OTHER_RESULTS or of_statics
    return not is_class and not value.callee.name.startswith(OTHER_LIBRARIES)


def _is_open(value: Value) -> bool:
    return isinstance(value, (Computed, Unknown))


def _makes_an_object(node: ast.expr) -> bool:
    """Whether a call makes an object of a class, as its name says."""
    return isinstance(node, ast.Call) and last_name(node.func)[:1].isupper()


def _is_path(node: ast.expr) -> bool:
    """Whether an expression leads to something by names and keys alone, as rules read it."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name)


def _chosen(node: ast.IfExp | ast.BoolOp | ast.NamedExpr) -> list[ast.expr]:
    match node:
        case ast.IfExp():
            return [node.body, node.orelse]
        case ast.BoolOp():
            return node.values
    return [node.value]


def reason(node: ast.expr) -> str:
    """Why what comes of an expression is not known: by the function in it, if there is one."""
    inner = node
    while not last_name(inner) or isinstance(inner, ast.Attribute):
        match inner:
            case ast.Attribute(value=within) | ast.Subscript(value=within):
                inner = within
            case ast.Call(func=function) if not last_name(function):
                inner = function
            case _:
                break
    if isinstance(inner, ast.Call) and last_name(inner.func):
        return f"what {last_name(inner.func)}() does with a model is not followed"
    return f"how a model gets into `{ast.unparse(inner)[:LONGEST]}` is not followed"


def _once(known: Known, key: tuple[ast.expr, bool], depth: int, find: Callable[[], bool]) -> bool:
    """What is found at a depth: so at every greater one if it is so, at no lesser one if not."""
    least, greatest = known.get(key, (DEEPEST + 1, -1))
    if greatest < depth < least:
        found = find()
        least, greatest = known.get(key, (DEEPEST + 1, -1))  # it may have led to itself
        known[key] = (min(least, depth), greatest) if found else (least, max(greatest, depth))
        return found
    return depth >= least


@dataclass(frozen=True)
class Ways:
    """How something that is ``wanted`` gets through expressions.

    An object that was given it is not it, but may have it: that counts where an attribute or an
    element is ``taken`` out of what is asked about. What was found of an expression is kept for
    all that are asked about, which lead to the same ones.
    """

    wanted: Question
    tracer: Tracer
    others: re.Pattern[str] = OTHER_OBJECTS  # names of what it is surely not
    by_text: bool = False  # rules read how it is written: what is followed hides it from them too
    known: Known = field(default_factory=dict)
    holding: Known = field(default_factory=dict)
    asked: dict[ast.expr, bool] = field(default_factory=dict)
    reasons: dict[ast.expr, str] = field(default_factory=dict)

    def is_wanted(self, node: ast.expr, module: Module) -> bool:
        """Whether an expression is what is ``wanted``; asked once."""
        if node not in self.asked:
            self.asked[node] = self.wanted(node, module)
        return self.asked[node]

    def made_of(self, node: ast.expr, module: Module) -> str:
        """Why an expression may be what is ``wanted``; an empty text if it is not. Asked once."""
        if node not in self.reasons:
            self.reasons[node] = self._find_reason(node, module)
        return self.reasons[node]

    def _find_reason(self, node: ast.expr, module: Module) -> str:
        if self.tracer.told(node, module) is False or self.others.search(last_name(node)):
            return ""
        asked = [(node, False), *((holder, True) for holder in self._holders(node, module))]
        for each, taken in asked:
            # Values come in no order.
            for origin, where in sorted(self._origins(each, module), key=_place):
                if self.carry(origin, where, DEEPEST, taken=taken):
                    return reason(origin)
        return ""

    def _holders(self, node: ast.expr, module: Module) -> Iterator[ast.expr]:
        """What a path that is read as it is written leads through, up to what is ``wanted``."""
        while self.by_text and _is_path(node) and isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
            if self.others.search(last_name(node)) or self.is_wanted(node, module):
                return
            yield node

    def _origins(self, node: ast.expr, module: Module) -> list[Origin]:
        """The expressions of which nothing is known that make what an expression is."""
        found = self.tracer.evaluate(node, module)
        unclear = [v for v in found if _is_open(v) or is_foreign_result(v)]
        origins = [(v.node, v.module) for v in unclear if isinstance(v.node, ast.expr)]
        origins += [(v.frame.call, v.frame.module) for v in unclear if v.frame is not None]
        if unclear or self.by_text:  # a function may have made it of what it was given
            assigned = [d for d in definitions(node, module) if d.kind is Kind.ASSIGN]
            written = [d.value for d in assigned if d.value is not None]
            origins += [(each, module) for each in (node, *written)]
        return [each for each in origins if not (self.by_text and _is_path(each[0]))]

    def carry(self, node: ast.expr, module: Module, depth: int, *, taken: bool = False) -> bool:
        """Whether it goes into an expression that is not followed, and may come out of it."""
        if depth <= 0:
            return False
        find = partial(self._carry, node, module, depth, taken)
        return _once(self.known, (node, taken), depth, find)

    def _carry(self, node: ast.expr, module: Module, depth: int, taken: bool) -> bool:
        inner: Sequence[ast.expr] = ()
        if self._is_of_others(node):
            return False
        if isinstance(node, (ast.Attribute, ast.Name)):  # one of ``*objects``
            found = self.tracer.evaluate(node, module)
            given = [each for v in found for each in whole_objects.collected(v, self.tracer)]
            if any(self.hold(each, where, depth - 1, taken=True) for each, where in given):
                return True
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, *_]):
                taken, inner = True, [owner]
            case ast.Call(func=ast.Attribute(value=owner)) if self._is_container(owner, module):
                taken, inner = True, [owner]  # heads.values()
            case ast.Call(func=called):
                is_other = self.others.search(last_name(called))  # build_optimizer(model)
                if not is_other and (taken or not _makes_an_object(node)):
                    inner = self._given(node, called, module)
            case ast.IfExp() | ast.BoolOp() | ast.NamedExpr():
                ways = self.hold if self.by_text else self.carry
                return any(ways(e, module, depth - 1, taken=taken) for e in _chosen(node))
            case ast.Attribute(value=owner) | ast.Subscript(value=owner):
                taken = True
                inner = [] if self.is_wanted(owner, module) else [owner]  # model.head
            case ast.Name():  # a list that a loop goes over
                found = self.tracer.evaluate(node, module)
                lists = frozenset(v for v in found if isinstance(v, Display))
                return self._values_hold(lists, depth, taken)
        return any(self.hold(each, module, depth - 1, taken=taken) for each in inner)

    def _given(self, call: ast.Call, called: ast.expr, module: Module) -> list[ast.expr]:
        """What a call may give back: its arguments, and what the container has that it asks."""
        names = self.tracer.project.external(called, module)
        if names and all(name.startswith(OTHER_LIBRARIES) for name in names):
            return []
        given = given_arguments(call)
        if isinstance(called, ast.Name) and called.id in NUMBERS_AND_TEXTS:
            return []
        if isinstance(called, (ast.Call, ast.Lambda)):
            return [*given, called]  # partial(passed, model)(), (lambda: model)()
        if not isinstance(called, ast.Attribute):
            return given
        owner = self.tracer.evaluate(called.value, module)
        if any(isinstance(value, Display) for value in owner):
            return [*given, called.value]
        if whole_objects.is_whole(called.value, module, self.tracer):
            return [*given, called.value]  # vars(self).items()
        if self.is_wanted(called.value, module):
            return []
        if not names and any(map(_is_open, owner)):  # a method of what may be a model itself
            held = [called.value] if called.attr in WAITING else []
            return [*held, *(g for g in given if self._is_called(g, module))]
        return given

    def _is_called(self, node: ast.expr, module: Module) -> bool:
        """Whether it is a function, which what gets it may call: ``pool.submit(build)``."""
        return any(isinstance(v, Function) for v in self.tracer.evaluate(node, module))

    def _is_container(self, node: ast.expr, module: Module) -> bool:
        found = self.tracer.evaluate(node, module)
        return any(isinstance(v, Made) and v.made_by in CONTAINERS for v in found)

    def _is_of_others(self, node: ast.expr) -> bool:
        """Whether a name says that it is none, nor a list of some: ``for opt in optimizers``."""
        name = last_name(node)
        is_path = isinstance(node, (ast.Name, ast.Attribute))
        return is_path and bool(self.others.search(name)) and not HOLDING_ANYTHING.search(name)

    def hold(self, node: ast.expr, module: Module, depth: int, *, taken: bool) -> bool:
        """Whether an expression is it, or has it in it so that it may be taken out again."""
        find = partial(self._hold, node, module, depth, taken=taken)
        return _once(self.holding, (node, taken), depth, find)

    def _hold(self, node: ast.expr, module: Module, depth: int, *, taken: bool) -> bool:
        if self.is_wanted(node, module):
            return True
        if self._is_of_others(node):
            return False
        match node:
            case ast.List(elts=inner) | ast.Tuple(elts=inner) | ast.Set(elts=inner):
                return any(self.hold(each, module, depth, taken=taken) for each in inner)
            case ast.Dict(values=inner):
                return any(self.hold(each, module, depth, taken=taken) for each in inner)
            case (
                ast.GeneratorExp(elt=elt, generators=loops)
                | ast.ListComp(elt=elt, generators=loops)
                | ast.DictComp(value=elt, generators=loops)
            ):
                inner = [elt, *(loop.iter for loop in loops)]
                return any(self.hold(each, module, depth, taken=taken) for each in inner)
            case ast.Starred(value=each) | ast.Lambda(body=each):
                return self.hold(each, module, depth, taken=taken)
        inside = whole_objects.parts(node, module, self.tracer)
        if depth > 0 and any(self.hold(e, where, depth - 1, taken=taken) for e, where in inside):
            return True
        values = self.tracer.evaluate(node, module)
        # A function that a call gives keeps what the call was given.
        kept = isinstance(node, ast.Call) and any(
            _is_open(v) or isinstance(v, Function) for v in values
        )
        if kept and self.carry(node, module, depth - 1, taken=taken):
            return True
        return depth > 0 and self._values_hold(values, depth, taken)

    def _values_hold(self, values: Values, depth: int, taken: bool) -> bool:
        for value in values:
            if isinstance(value, Display):
                added = self.tracer.additions(value)
                if any(self.hold(e, where, depth - 1, taken=taken) for e, where in added):
                    return True
            given = whole_objects.collected(value, self.tracer)
            if any(self.hold(each, where, depth - 1, taken=taken) for each, where in given):
                return True
            if not isinstance(value, (Computed, Display, Unknown, Made)):
                continue
            if isinstance(value.node, ast.expr):
                found = self.hold if isinstance(value, Display) else self.carry
                if found(value.node, value.module, depth - 1, taken=taken):
                    return True
        return False
