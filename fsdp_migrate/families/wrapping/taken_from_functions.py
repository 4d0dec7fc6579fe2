"""Arguments in a dictionary that a function makes: ``given = settings()``, ``FSDP(m, **given)``.

Its callers may change entries, and hand it on to functions and classes whose parameters are
``**given`` to constructors there.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import partial
from typing import NamedTuple

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, exits
from fsdp_migrate.analysis.values import Constant, Function
from fsdp_migrate.families.wrapping import dictionary_ways, written_dictionaries
from fsdp_migrate.families.wrapping.taken_contents import Contents, Found
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Kind, Scope


class Maker(NamedTuple):
    """A function, and the place in a tuple at which it returns the dictionary."""

    function: ast.FunctionDef
    place: tuple[int, ...]
    home: Module


def of_functions(spread: dict[Constructor, ast.expr], study: Study) -> Found:
    """Constructors that are given what calls of one function return."""
    given: dict[Maker, dict[Constructor, ast.Call]] = defaultdict(dict)
    handed: dict[Maker, list[Constructor]] = defaultdict(list)
    for constructor, dictionary in spread.items():
        module = constructor.module
        scope = _scope_of(dictionary, module)
        if scope is None or not isinstance(dictionary, ast.Name):
            continue
        calls = made_by_calls(dictionary.id, scope)
        makers = {_maker(call, place, module, study) for call, place in calls} or {
            _handed_by(dictionary, module, study)
        }
        maker = makers.pop()
        if makers or maker is None:
            continue
        if calls:
            given[maker][constructor] = calls[0][0]
        else:
            handed[maker].append(constructor)
    for maker in dict.fromkeys((*given, *handed)):
        others = handed.get(maker, [])
        read = partial(_returned, maker, given.get(maker, {}), others, spread, study)
        yield [*given.get(maker, ()), *others], read


def _scope_of(dictionary: ast.expr, module: Module) -> Scope | None:
    """The function that has a variable."""
    if not isinstance(dictionary, ast.Name):
        return None
    scope = module.table.within[dictionary].lookup(dictionary.id)
    return scope if scope is not None and scope.is_function else None


def made_by_calls(name: str, scope: Scope) -> list[tuple[ast.Call, tuple[int, ...]]]:
    """The calls that give a variable of a function all of its values, and the place in a tuple
    that each has there; none if it has another value too."""
    found = []
    for binding in scope.bindings[name]:
        statement, value = binding.node, binding.value
        is_single = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if binding.kind is not Kind.ASSIGN or not isinstance(value, ast.Call) or not is_single:
            return []
        found.append((value, binding.unpack))
    return found


def _maker(call: ast.Call, place: tuple[int, ...], module: Module, study: Study) -> Maker | None:
    """The function that a call runs."""
    match list(study.values(call.func, module)):
        case [Function(node=ast.FunctionDef() as function, module=home)]:
            return Maker(function, place, home)
    return None


def _handed_by(dictionary: ast.Name, module: Module, study: Study) -> Maker | None:
    """The function that makes the only dictionary that a parameter may be, if it is one."""
    found = set()
    for value in study.values(dictionary, module):
        if isinstance(value, Constant) and value.value is None:
            continue  # which nothing can be given as a dictionary
        if not isinstance(value.node, (ast.Dict, ast.Call)):
            return None
        scope = value.module.table.scope_of(value.node)
        if not isinstance(scope.node, ast.FunctionDef):
            return None
        found.add(Maker(scope.node, (), value.module))
    return found.pop() if len(found) == 1 else None


def _returned(
    maker: Maker,
    calls: dict[Constructor, ast.Call],
    handed: Collection[Constructor],
    spread: dict[Constructor, ast.expr],
    study: Study,
) -> Contents:
    """The dictionary that a function returns, and what its callers do with it.

    Raises:
        Unreadable: it cannot be read, or something else gets it.
    """
    function, place, home = maker
    returns, yields = exits(function, home)
    if function.decorator_list or yields or function.body[-1] not in returns:
        raise Unreadable("it is made in another way")
    holders = {
        dictionary_ways.Holder(name, scope, module): None
        for name, scope, module in _variables(maker, study)
    }
    entries = tuple(_entries(function, place, home))
    replaced = dictionary_ways.surely_replaced(holders)
    replaced -= {entry.name for entry in entries if not _is_only_made(entry.value, home, study)}
    contents = Contents(home, entries, made=_first(function, home), replaced=replaced)
    if not handed:
        contents.function, contents.calls = function, calls
    readers = [spread[constructor] for constructor in (*calls, *handed)]
    dictionary_ways.read(holders, contents, readers, study)
    contents.said = contents.written_members(study)
    return contents


def _is_only_made(value: ast.expr, home: Module, study: Study) -> bool:
    """Whether nothing but settings of torch's are lost where nobody makes a value."""
    called = [study.external(n.func, home) for n in ast.walk(value) if isinstance(n, ast.Call)]
    known = ("torch.", "functools.")
    return all(names and all(name.startswith(known) for name in names) for names in called)


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


def _variables(maker: Maker, study: Study) -> Iterator[tuple[str, Scope, Module]]:
    """The variables that calls of a function are assigned to, which is all that it is used for.

    Raises:
        Unreadable: something else is done with it.
    """
    function, place, home = maker
    scope = present(home.table.scopes[function].parent)
    if class_of_method(function, home) is not None or len(scope.bindings[function.name]) != 1:
        raise Unreadable("its name has several values")
    uses = name_uses.uses_of(function.name, scope, home, study.project, handed_on=True)
    if uses is None:
        raise Unreadable("something else may call the function")
    for use, module in uses:
        table = module.table
        call = table.parents[use]
        statement = table.parents[call]
        if not isinstance(call, ast.Call) or call.func is not use:
            raise Unreadable("something else may call the function")
        caller = table.scope_of(call).home()
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        target = targets[0] if len(targets) == 1 else None
        for index in place:
            inside = target.elts if isinstance(target, ast.Tuple) else []
            target = inside[index] if index < len(inside) else None
        if not isinstance(target, ast.Name) or not caller.is_function:
            raise Unreadable("something else may call the function")
        made = made_by_calls(target.id, caller)
        if not made or any(_maker(c, p, module, study) != maker for c, p in made):
            raise Unreadable("its variable has other values")
        yield target.id, caller, module
