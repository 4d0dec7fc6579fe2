"""Arguments in a dictionary that a function makes: ``given = settings()``, ``FSDP(net, **given)``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, exits
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.wrapping import written_dictionaries
from fsdp_migrate.families.wrapping.taken_contents import Contents, Found, read_use
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Kind


def of_functions(spread: dict[Constructor, ast.expr], study: Study) -> Found:
    """Constructors that are given what calls of one function return."""
    given: dict[tuple[ast.FunctionDef, tuple[int, ...]], dict[Constructor, ast.Call]]
    given = defaultdict(dict)
    homes: dict[ast.FunctionDef, Module] = {}
    for constructor, dictionary in spread.items():
        made = _made_by_call(dictionary, constructor.module)
        if made is None:
            continue
        call, place = made
        match list(study.values(call.func, constructor.module)):
            case [Function(node=ast.FunctionDef() as function, module=home)]:
                homes[function] = home
                given[function, place][constructor] = call
    for (function, place), calls in given.items():
        read = partial(_returned, function, place, homes[function], calls, spread, study)
        yield list(calls), read


def _made_by_call(dictionary: ast.expr, module: Module) -> tuple[ast.Call, tuple[int, ...]] | None:
    """The call that gives a variable of a function its only value, and the place in a tuple that
    it has there."""
    if not isinstance(dictionary, ast.Name):
        return None
    scope = module.table.within[dictionary].lookup(dictionary.id)
    if scope is None or not scope.is_function:
        return None
    match scope.bindings[dictionary.id]:
        case [binding] if binding.kind is Kind.ASSIGN and isinstance(binding.value, ast.Call):
            is_single = isinstance(binding.node, ast.Assign) and len(binding.node.targets) == 1
            return (binding.value, binding.unpack) if is_single else None
    return None


def _returned(
    function: ast.FunctionDef,
    place: tuple[int, ...],
    home: Module,
    calls: dict[Constructor, ast.Call],
    spread: dict[Constructor, ast.expr],
    study: Study,
) -> Contents:
    """The dictionary that a function returns, and what its callers do with it.

    Raises:
        Unreadable: it cannot be read, or something else gets it.
    """
    returns, yields = exits(function, home)
    if function.decorator_list or yields or function.body[-1] not in returns:
        raise Unreadable("it is made in another way")
    _check_callers(function, home, [c.func for c in calls.values()], study)
    contents = Contents(home, tuple(_entries(function, place, home)), made=_first(function, home))
    contents.function, contents.calls = function, calls
    for constructor in calls:
        variable = spread[constructor]
        assert isinstance(variable, ast.Name)
        scope = present(constructor.module.table.within[variable].lookup(variable.id))
        table = constructor.module.table
        for use in table.names_by_id.named(variable.id):
            if table.within[use].lookup(use.id) is scope and isinstance(use.ctx, ast.Load):
                read_use(use, constructor.module, contents, set(spread.values()))
    contents.said = contents.written_members(study)
    return contents


def _first(function: ast.FunctionDef, home: Module) -> ast.Call | ast.Dict | None:
    """What the dictionary that a function returns by its name is before anything is put there,
    which may be empty."""
    match exits(function, home)[0]:
        case [ast.Return(value=ast.Name(id=name))] if name in home.table.scopes[function].bindings:
            return written_dictionaries.made_by(name, home.table.scopes[function])[0][1]
    return None


def _entries(function: ast.FunctionDef, place: tuple[int, ...], home: Module) -> Iterator[Entry]:
    """What stands in the dictionary that a function returns, in a place of a tuple or by itself."""
    returns, _ = exits(function, home)
    scope = home.table.scopes[function]
    values = []
    for each in returns:
        value = each.value
        for index in place:
            if not isinstance(value, ast.Tuple) or index >= len(value.elts):
                raise Unreadable("it is made in another way")
            value = value.elts[index]
        values.append((each, value))
    names = {value.id for _, value in values if isinstance(value, ast.Name)}
    if len(names) == 1 and all(isinstance(value, ast.Name) for _, value in values):
        readers = [home.table.parents[present(value)] for _, value in values]
        yield from written_dictionaries.entries_of(names.pop(), scope, readers, home)
        return
    made = [(each, written_dictionaries.display(value, scope)) for each, value in values]
    yield from written_dictionaries.either(
        [[*written_dictionaries.items_of(written, each)] for each, written in made]
    )


def _check_callers(
    function: ast.FunctionDef, home: Module, calls: Iterable[ast.expr], study: Study
) -> None:
    """Refuse a function that is called, or handed on, for something else.

    Raises:
        Unreadable: it is.
    """
    scope = present(home.table.scopes[function].parent)
    if class_of_method(function, home) is not None or len(scope.bindings[function.name]) != 1:
        raise Unreadable("its name has several values")
    uses = name_uses.uses_of(function.name, scope, home, study.project, handed_on=True)
    if uses is None or not {use for use, _ in uses} <= {*calls}:
        raise Unreadable("something else may call the function")
