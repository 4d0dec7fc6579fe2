"""Receivers of methods that only FSDP1's models have, of which nothing else tells what they are.

``def step(model): model.clip_grad_norm_(1.0)``, which nobody here calls, is given an FSDP1 model by
a registry or a plugin. What is traced to something else is none of FSDP1's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from itertools import takewhile

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.containers import DICTS
from fsdp_migrate.analysis.tracing.owners import NAMESPACES
from fsdp_migrate.analysis.tracing.sequences import THROUGH_STARS
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import (
    Class,
    Computed,
    Constant,
    Display,
    Function,
    Made,
    Unknown,
    Value,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import unfollowed
from fsdp_migrate.fsdp1.model_values import is_model
from fsdp_migrate.syntax.expressions import bind_arguments, given_arguments, last_name
from fsdp_migrate.syntax.kinds import method_of

MODULES = frozenset({"torch.nn.Module", "torch.nn.modules.module.Module", "typing.Any"})
HOLDERS = DICTS | {
    *("builtins.list", "collections.deque", "queue.Queue", "contextvars.ContextVar"),
    *("builtins.vars", "builtins.globals", "builtins.locals"),
    *("weakref.WeakValueDictionary", "weakref.WeakKeyDictionary"),
}
DEEPEST = 8  # expressions that lead to one another
_Known = dict[tuple[ast.expr, int], str]  # what was found for one question, by depth


def doubt(attribute: ast.Attribute, module: Module, tracer: Tracer) -> str:
    """Why what has this method called may be an FSDP1 model; an empty text if it is none."""
    call = module.table.parents[attribute]
    if not isinstance(call, ast.Call) or call.func is not attribute:
        return ""
    if attribute.attr not in fsdp1.ONLY_MODELS or not _takes(call):
        return ""
    here = module.table.scope_of(attribute).function()
    handed_on = here is not None and getattr(here.node, "name", "") == attribute.attr
    if tracer.defines_method(attribute.attr) and not handed_on:
        return ""  # the project's own has that name as well
    if is_asked_for(attribute, module):
        return ""
    return may_be(attribute.value, module, tracer) or unfollowed.made_of(
        lambda node, where: bool(may_be(node, where, tracer)), attribute.value, module, tracer
    )


def is_asked_for(attribute: ast.Attribute, module: Module) -> bool:
    """Whether ``hasattr`` asks for the method first: no migrated model gets there."""
    for parent in module.table.ancestors(attribute):
        match getattr(parent, "test", None):
            case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=name)]):
                if name == attribute.attr and ast.dump(owner) == ast.dump(attribute.value):
                    return True
    return False


WRITTEN = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.DictComp, ast.GeneratorExp)


def may_be(node: ast.expr, module: Module, tracer: Tracer) -> str:
    """Why an expression may be an FSDP1 model, as far as is known; nothing if it is something else.

    It is for what no value tells to be a model.
    """
    return "" if tracer.told(node, module) is False else _of(node, module, tracer, DEEPEST, {})


def _takes(call: ast.Call) -> bool:
    """Whether a call gives what FSDP1's method takes; others clip parameters that they are given,
    take a model to ``no_sync``, or set the kind of state of their own models by its name."""
    match method_of(call).attr:
        case "no_sync" | "check_is_root":
            return not call.args and not call.keywords
        case "clip_grad_norm_":
            bound = bind_arguments(call, ("max_norm", "norm_type"))
            if bound is None or "max_norm" not in bound:
                return False
            limit = bound["max_norm"]
            named = last_name(limit.func if isinstance(limit, ast.Call) else limit)
            written = isinstance(limit, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript))
            one = len(call.args) < 2 or isinstance(limit, ast.Constant)
            return written and one and "param" not in named
        case name if name in fsdp1.STATICS:  # a model comes first
            return not any(isinstance(each, ast.Constant) for each in given_arguments(call)[:1])
    return True


def _of(node: ast.expr, module: Module, tracer: Tracer, depth: int, known: _Known) -> str:
    """Why an expression may be a model."""
    if (node, depth) not in known:
        values = sorted(tracer.evaluate(node, module), key=_place) if depth else []
        found = [v for v in values if not _is_none(v)]
        found = _of_others(found) or found
        asked = (_why(v, node, tracer, depth, known) for v in found)
        reasons = list(takewhile(bool, asked))  # the first that is something else tells
        known[node, depth] = reasons[0] if reasons and len(reasons) == len(found) else ""
    return known[node, depth]


def _place(value: Value) -> tuple[object, ...]:
    """Where a value was made: of several reasons, the first in the source is told."""
    line, column = getattr(value.node, "lineno", 0), getattr(value.node, "col_offset", 0)
    why = value.why if isinstance(value, Unknown) else ""
    return value.module.display, line, column, type(value).__name__, why


def _of_others(values: list[Value]) -> list[Value]:
    """Those that are what people who use the project give: they make objects of a class that
    nothing here makes any of. What others of the family are given tells nothing of them; what the
    class itself puts there does, and then there are none."""
    given: list[Value] = [v for v in values if isinstance(v, Unknown) and v.is_never_made]
    classes = {_class_around(v) for v in given} - {None}
    is_put = any(v not in given and _class_around(v) in classes for v in values)
    return [] if is_put else given


def _class_around(value: Value) -> ast.AST | None:
    above = value.module.table.ancestors(value.node)
    return next((each for each in above if isinstance(each, ast.ClassDef)), None)


def _is_none(value: Value) -> bool:
    return isinstance(value, Constant) and value.value is None


def _why(value: Value, asked: ast.expr, tracer: Tracer, depth: int, known: _Known) -> str:
    is_got = isinstance(value, Made) and value.made_by == "builtins.getattr"
    if not (isinstance(value, (Computed, Unknown)) or is_got):
        return ""
    why = value.why if isinstance(value, Unknown) else "what it is made of is not known here"
    if why == THROUGH_STARS or (isinstance(value, Unknown) and value.is_cut):
        return why
    module = value.module
    if stored := _stored(value.node, module, tracer):
        return stored
    owner: ast.expr
    match value.node:
        case ast.arg(annotation=annotation):
            return why if annotation is None or _is_module(annotation, module, tracer) else ""
        case ast.Attribute(value=inner) | ast.Subscript(value=inner):
            owner = inner
        case ast.Call(args=[inner, *_]) if is_got:
            owner = inner
        case ast.Call(func=function) as call:
            made = tracer.evaluate(call, module)
            if any(not _is_open(v) for v in made):  # ``engine, _ = deepspeed.initialize(...)``
                return why if any(map(_is_own, made)) else ""  # an element of what is made
            if any(isinstance(v, Function) for v in tracer.evaluate(function, module)):
                return why  # what an ``async`` function gives
            owner = function.value if isinstance(function, ast.Attribute) else function
        case ast.Name() as name if name is not asked:
            owner = name
        case _:
            return why
    holders = [v for v in tracer.evaluate(owner, module) if _is_own(v)]
    if holders and not all(_is_written_out(v, tracer) for v in holders):
        return why
    if any(_of(*each, tracer, depth - 1, known) for v in holders for each in _written_in(v)):
        return why
    return why if _of(owner, module, tracer, depth - 1, known) else ""


def _stored(node: ast.AST, module: Module, tracer: Tracer) -> str:
    """Why an attribute, or what a getter gives, of an object whose class is not known may be an
    FSDP1 model, or have some in it: the project sets one of that name."""
    find: Callable[[str, Tracer], Iterator[tuple[ast.expr, Module]]]
    match node:
        case ast.Attribute(attr=name):
            find = _stores_of
        case ast.Call(func=ast.Attribute(attr=name)) if name.startswith("get_"):
            find = _arguments_of_setter
        case _:
            return ""
    known = tracer.found_out[find]  # a common name is asked for again and again
    if name not in known:
        known[name] = any(
            _holds_models(value, where, tracer) for value, where in find(name, tracer)
        )
    return f"`{name}` may have FSDP models in it" if known[name] else ""


def _stores_of(attribute: str, tracer: Tracer) -> Iterator[tuple[ast.expr, Module]]:
    """What the project assigns to attributes of a name."""
    for store, module in tracer.stores_named(attribute):
        parent = module.table.parents[store]
        if isinstance(parent, ast.Assign):
            yield parent.value, module


def _arguments_of_setter(getter: str, tracer: Tracer) -> Iterator[tuple[ast.expr, Module]]:
    """What the setter is given that belongs to a getter: of ``get_model``, ``set_model``."""
    for call, module in tracer.calls_named(f"set_{getter.removeprefix('get_')}"):
        yield from ((argument, module) for argument in call.args)


def _holds_models(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    if any(is_model(value, tracer) for value in tracer.evaluate(node, module)):
        return True
    return bool(tracer.models_in(node, module, None))


def _is_open(value: Value) -> bool:
    return isinstance(value, (Computed, Unknown))


def _is_own(value: Value) -> bool:
    """Whether a value is one of the project's classes or an object of it, or what anything may be
    set on or put into."""
    if isinstance(value, (Class, Display)):
        return True
    return isinstance(value, Made) and (
        isinstance(value.callee, Class) or value.made_by in NAMESPACES | HOLDERS
    )


def _is_written_out(value: Value, tracer: Tracer) -> bool:
    """Whether a list or dictionary of modules is made of what is written at its call, and nothing
    is put into it later."""
    match value:
        case Made(node=ast.Call(args=[given])) if value.made_by in HOLDERS:
            return isinstance(given, WRITTEN) and not any(tracer.additions(value))
    return False


def _written_in(value: Value) -> list[tuple[ast.expr, Module]]:
    """What a list or dictionary of modules has in it as it is written at its call."""
    given: list[ast.expr] = []
    match value.node:
        case ast.Call(args=[ast.List(elts=elements) | ast.Tuple(elts=elements)]):
            given = elements
        case ast.Call(args=[ast.Dict(values=elements)]):
            given = elements
        case ast.Call(args=[ast.DictComp(value=element)]):
            given = [element]
        case ast.Call(args=[ast.ListComp(elt=element) | ast.GeneratorExp(elt=element)]):
            given = [element]
    return [(each, value.module) for each in given]


def _is_module(annotation: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether a type leaves open that it is an FSDP1 model: any module, or anything."""
    return any(_leaves_open(n, module, tracer) for n in _parts(annotation))


def _parts(annotation: ast.expr) -> Iterable[ast.expr]:
    return (
        n for n in ast.walk(annotation) if isinstance(n, (ast.Name, ast.Attribute, ast.Constant))
    )


def _leaves_open(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.rpartition(".")[2] in {"Module", "Any"}
    if tracer.project.external(node, module):
        return not MODULES.isdisjoint(tracer.project.external(node, module))
    classes = [v for v in tracer.evaluate(node, module) if isinstance(v, Class)]
    return any(not MODULES.isdisjoint(tracer.external_bases(cls)) for cls in classes)
