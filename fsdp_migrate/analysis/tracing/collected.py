"""What ``**kwargs`` of a function collects: by the call of its frame, or by all callers.

``super().__init__(*args, **kwargs)`` hands on what callers give by name, and
``kwargs.get("policy", other)`` takes one of it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.values import UNCALLED, Frame, FunctionNode, Unknown, Value
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

# What reads a dictionary that it is given, and leaves it.
COPYING = frozenset({"dict", "iter", "len", "list", "print", "set", "sorted", "tuple", "update"})
READING = frozenset({"get", "keys", "items", "values", "copy"})  # methods that change nothing


@dataclass
class Entry:
    """What dictionaries have under a name, and whether some of them lack it."""

    values: list[Value] = field(default_factory=list)
    is_lacking: bool = False

    def add(self, other: Entry) -> None:
        self.values += other.values
        self.is_lacking = self.is_lacking or other.is_lacking


def function_of(arg: ast.AST, module: Module) -> FunctionNode | None:
    """The function whose ``**kwargs`` a parameter is."""
    parents = module.table.parents
    function = parents.get(parents.get(arg, arg))
    if isinstance(function, FUNCTIONS) and function.args.kwarg is arg:
        return function
    return None


def is_only_read(arg: ast.arg, function: FunctionNode, name: str, module: Module) -> bool:
    """Whether what a function's ``**kwargs`` has under a name stays what its callers gave."""
    scope = module.table.scopes[function]
    if [binding.kind for binding in scope.bindings[arg.arg]] != [Kind.PARAMETER]:
        return False
    return all(_leaves(use, name, module) for use in uses(arg, function, module))


def uses(arg: ast.arg, function: FunctionNode, module: Module) -> Iterator[ast.Name]:
    """Where a parameter is used."""
    table = module.table
    scope = table.scopes[function]
    for use in table.names_by_id.named(arg.arg):
        if table.within[use].lookup(use.id) is scope:
            yield use


def _leaves(use: ast.Name, name: str, module: Module) -> bool:
    """Whether a use of a dictionary leaves what it has under a name."""
    parents = module.table.parents
    parent = parents[use]
    match parent:
        case ast.keyword(arg=None) | ast.Compare() | ast.FormattedValue():
            return True
        case ast.Call(func=function, args=given) if use in given:
            return last_name(function) in COPYING
        case ast.Dict(keys=keys, values=values):
            return keys[values.index(use)] is None
        case ast.Subscript(ctx=ast.Load()):
            return True
        case ast.Subscript(slice=ast.Constant(value=key)):
            return key != name
        case ast.Attribute(attr=method) if method in READING:
            return True
        case ast.Attribute(attr="pop"):
            match parents[parent]:
                case ast.Call(args=[ast.Constant(value=key), *_]) as call:
                    # Its value is what callers gave; later uses have it no more.
                    return key != name or not _is_used_after(use, call, module)
    return False


def _is_used_after(use: ast.Name, call: ast.Call, module: Module) -> bool:
    table = module.table
    scope = table.within[use].lookup(use.id)
    end = call.end_lineno or call.lineno
    return any(
        other.lineno > end and table.within[other].lookup(other.id) is scope
        for other in table.names_by_id.named(use.id)
    )


class Collected:
    """Reads ``**kwargs`` by name."""

    def __init__(
        self,
        tracer: Evaluator,
        entry: Callable[[ast.expr, str, Module, Frame | None, set[ast.AST]], Entry | None],
        if_nothing: Callable[..., list[Value]],
    ) -> None:
        self.tracer = tracer
        self.entry = entry
        self.if_nothing = if_nothing

    def named(
        self, arg: ast.AST, name: str, module: Module, frame: Frame | None, known: set[ast.AST]
    ) -> Entry | None:
        """What a parameter that collects arguments has under a name; None where that is not known,
        or it is another parameter.

        Args:
            known: parameters that the same question has been asked of.
        """
        function = function_of(arg, module)
        if function is None or not isinstance(arg, ast.arg):
            return None
        own = (*function.args.args, *function.args.kwonlyargs)
        if any(each.arg == name for each in own):
            return Entry(is_lacking=True)
        if arg in known:
            return Entry()
        if not is_only_read(arg, function, name, module):
            return None
        known.add(arg)
        if frame is not None and frame.function is function:
            if frame.partial is not None or frame.configured:
                return None
            calls = [(frame.call, frame.module, frame.parent)]
        else:
            sites = self.tracer.callers(function, module)
            if any(site.is_by_another or site.partial or site.configured for site in sites):
                return None
            if self.tracer.is_in_doubt(function):
                return None
            calls = [(site.call, site.module, None) for site in sites]
        result = Entry()
        for call, where, outer in calls:
            given = self._given(call, name, where, outer, known)
            if given is None:
                return None
            result.add(given)
        if not calls:
            made = getattr(function, "name", "a lambda")
            why = f"{arg.arg} is a parameter of {made}{UNCALLED}"
            result.values += self.if_nothing(Unknown(arg, module, None, why))
            result.is_lacking = bool(result.values)
        return result

    def _given(
        self, call: ast.Call, name: str, module: Module, frame: Frame | None, known: set[ast.AST]
    ) -> Entry | None:
        """What a call gives by a name."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return Entry([*self.tracer.evaluate(keyword.value, module, frame)])
        opened = [keyword.value for keyword in call.keywords if keyword.arg is None]
        result = Entry(is_lacking=not opened)
        for each in opened:
            found = self.entry(each, name, module, frame, known)
            if found is None:
                return None
            result.add(found)
        return result
