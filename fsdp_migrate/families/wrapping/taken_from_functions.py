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
from fsdp_migrate.analysis.values import Constant, Function, Unknown
from fsdp_migrate.families.wrapping import dictionary_ways, uncalled, written_dictionaries
from fsdp_migrate.families.wrapping.joined_contents import Joined
from fsdp_migrate.families.wrapping.taken_contents import Contents, Found
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry
from fsdp_migrate.syntax.kinds import of_kind, present
from fsdp_migrate.syntax.scopes import Kind, Scope


class Maker(NamedTuple):
    """A function, and the place in a tuple at which it returns the dictionary."""

    function: ast.FunctionDef
    place: tuple[int, ...]
    home: Module


class Reader(NamedTuple):
    """A constructor, the functions one of which makes its dictionary, and the call of the function
    whose result it is given by a name, if that is no parameter. Or the parameter that nothing in
    sight gives anything, if it is taken for another of its name."""

    constructor: Constructor
    makers: frozenset[Maker]
    call: ast.Call | None = None
    idle: dictionary_ways.Holder | None = None


def of_functions(spread: dict[Constructor, ast.expr], study: Study) -> Found:
    """Constructors that are given what calls of functions return."""
    readers = [*_readers(spread, study)]
    for makers in _together(readers):
        given = [reader for reader in readers if reader.makers <= makers.keys()]
        constructors = [reader.constructor for reader in given]
        if len(makers) == 1:
            yield constructors, partial(_returned, next(iter(makers)), given, spread, study)
        else:
            yield constructors, partial(_joined, makers, given, spread, study)


def _readers(spread: dict[Constructor, ast.expr], study: Study) -> Iterator[Reader]:
    """Constructors whose dictionaries come from functions: of names first, then of parameters."""
    handed: dict[str, list[Reader]] = defaultdict(list)
    idle: list[tuple[str, Reader]] = []
    for constructor, dictionary in spread.items():
        module = constructor.module
        scope = _scope_of(dictionary, module)
        if scope is None or not isinstance(dictionary, ast.Name):
            continue
        calls = made_by_calls(dictionary.id, scope)
        makers = {_maker(call, place, module, study) for call, place in calls}
        known = frozenset(maker for maker in makers if maker is not None)
        if len(known) == len(makers) == 1:
            yield Reader(constructor, known, calls[0][0])
            continue
        reader = Reader(constructor, _handed_by(dictionary, module, study))
        handed[dictionary.id].append(reader)
        if _is_never_given(dictionary, module, study):
            holder = dictionary_ways.Holder(dictionary.id, scope, module)
            idle.append((dictionary.id, reader._replace(idle=holder)))
    yield from (reader for each in handed.values() for reader in each if reader.makers)
    for name, reader in idle:
        others = {other.makers for other in handed[name] if other.makers}
        if len(others) == 1 and all(len(each) == 1 for each in others):
            yield reader._replace(makers=others.pop())


def _is_never_given(dictionary: ast.Name, module: Module, study: Study) -> bool:
    """Whether a parameter is of a function that nothing calls, in a program that nobody can
    install."""
    values = study.values(dictionary, module)
    unknown = [each for each in values if isinstance(each, Unknown)]
    scope = module.table.within[dictionary].lookup(dictionary.id)
    kinds = [binding.kind for binding in scope.bindings[dictionary.id]] if scope else []
    return (
        kinds == [Kind.PARAMETER]
        and bool(unknown)
        and all(uncalled.is_never_given(each, study) for each in unknown)
        and all(isinstance(each, (Unknown, Constant)) for each in values)
    )


def _assume(reader: Reader, maker: Maker) -> None:
    """Let the constructor say what its dictionary is taken for."""
    scope = present(reader.idle).scope
    function = of_kind(scope.node, ast.FunctionDef)
    cls = class_of_method(function, reader.constructor.module)
    made = f"makes {cls.name}" if cls is not None else f"calls {function.name}()"
    reader.constructor.assumed = (
        f"nothing here {made}: its {present(reader.idle).name} is taken for what "
        f"{maker.function.name}() returns, which is what others of this name are"
    )


def _together(readers: list[Reader]) -> list[dict[Maker, None]]:
    """Functions whose dictionaries some constructor may be given either of, in the order of what
    is given them."""
    groups: list[dict[Maker, None]] = []
    for reader in readers:
        meeting = [group for group in groups if not reader.makers.isdisjoint(group)]
        joined = {maker: None for group in meeting for maker in group}
        joined |= dict.fromkeys(sorted(reader.makers, key=_position))
        groups = [group for group in groups if group not in meeting]
        groups.append(joined)
    return groups


def _position(maker: Maker) -> tuple[str, int]:
    return str(maker.home.path), maker.function.lineno


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


def _handed_by(dictionary: ast.Name, module: Module, study: Study) -> frozenset[Maker]:
    """The functions that make the dictionaries that a parameter may be, if that is known.

    Of a program that nobody can install, nobody calls what nothing in sight calls.
    """
    found = set()
    for value in study.values(dictionary, module):
        if isinstance(value, Constant) and value.value is None:
            continue  # which nothing can be given as a dictionary
        if isinstance(value, Unknown) and uncalled.is_never_given(value, study):
            continue
        if not isinstance(value.node, (ast.Dict, ast.Call)):
            return frozenset()
        scope = value.module.table.scope_of(value.node)
        if not isinstance(scope.node, ast.FunctionDef):
            return frozenset()
        found.add(Maker(scope.node, (), value.module))
    return frozenset(found)


def _joined(
    makers: dict[Maker, None],
    readers: Collection[Reader],
    spread: dict[Constructor, ast.expr],
    study: Study,
) -> Contents:
    """The dictionaries of several functions.

    Raises:
        Unreadable: one of them cannot be read.
    """
    parts = {}
    for maker in makers:
        own = [reader for reader in readers if maker in reader.makers]
        parts[maker] = _returned(maker, own, spread, study)
    given = {r.constructor: [parts[m] for m in makers if m in r.makers] for r in readers}
    return Joined.of([*parts.values()], given)


def _returned(
    maker: Maker,
    readers: Collection[Reader],
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
    calls = {r.constructor: r.call for r in readers if r.call is not None}
    if len(calls) == len(readers):
        contents.function, contents.calls = function, calls
    given = [spread[reader.constructor] for reader in readers]
    idle = [reader.idle for reader in readers if reader.idle is not None]
    dictionary_ways.read(holders, contents, given, study, idle)
    for reader in readers:
        if reader.idle is not None:
            _assume(reader, maker)
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
        if not isinstance(target, ast.Name) or not _is_own(target.id, caller, module, study):
            raise Unreadable("something else may call the function")
        made = made_by_calls(target.id, caller)
        if not made or any(_maker(c, p, module, study) != maker for c, p in made):
            raise Unreadable("its variable has other values")
        yield target.id, caller, module


def _is_own(name: str, caller: Scope, module: Module, study: Study) -> bool:
    """Whether a variable is one of a function, or of a file that no other file may ask for it."""
    if not caller.is_function and not caller.is_class:
        uses = name_uses.uses_of(name, caller, module, study.project)
        return uses is not None and all(isinstance(u, ast.Name) and m is module for u, m in uses)
    return caller.is_function
