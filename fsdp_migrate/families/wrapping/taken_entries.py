"""Arguments in a dictionary that stays as it is: ``FSDP(model, **self.defaults)``.

A function of another file makes it, or one that returns more than it, or it is an attribute of a
class, or stands at the top of another file, or has some of them under a condition. Which arguments
it has is read; each of them is written at the call as what the dictionary has under its name,
``self.defaults["mixed_precision"]``, and is what may be put there, wherever that is done. So each
argument's rule answers as for any expression.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fsdp_migrate.analysis import name_uses
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, exits
from fsdp_migrate.analysis.values import Function, Unknown, Value
from fsdp_migrate.families.wrapping import (
    keyword_dictionaries,
    refused_modules,
    shared_functions,
    taken_from_modules,
    taken_from_variables,
    written_dictionaries,
)
from fsdp_migrate.families.wrapping.run_time import CONVERTED
from fsdp_migrate.families.wrapping.taken_contents import Contents, Found, read_use
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry, KeywordDictionary
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.scopes import Kind, Scope

# What FSDP1 takes for arguments that are not given, where that is not None.
DEFAULTS = {
    "forward_prefetch": False,
    "limit_all_gathers": True,
    "sync_module_states": False,
    "use_orig_params": False,
}
# Others may ask the dictionary for a strategy: that stays what it was.
ASKED = CONVERTED - {"auto_wrap_policy", "sharding_strategy"}
SETTINGS = "settings"  # what a function calls its dictionary that shards several models
CHANGED = "it is asked for in its dictionary as well"


def register(study: Study) -> None:
    """Give constructors the arguments that they take out of a dictionary."""
    spread = {}
    for constructor in study.constructors.values():
        found = keyword_dictionaries.spread_of(constructor, study)
        if found is not None:
            spread[constructor] = found
    finders = (
        _of_functions,
        _of_classes,
        taken_from_modules.of_modules,
        taken_from_variables.of_variables,
    )
    for constructors, read in (each for find in finders for each in find(spread, study)):
        try:
            contents = read()
            _check(contents, constructors, study)
        except Unreadable:
            continue
        _give(contents, {c: spread[c] for c in constructors}, study)


def _check(contents: Contents, constructors: Iterable[Constructor], study: Study) -> None:
    """Refuse what is no argument, or given twice, or becomes another thing that others ask for;
    and dictionaries for a module that ``fully_shard`` does not take.

    Raises:
        Unreadable: there is such an entry, or module.
    """
    given = contents.places.keys()
    if any(refused_modules.refusal(each, study, given) is not None for each in constructors):
        raise Unreadable("one of the modules takes no fully_shard")
    written = {name for constructor in constructors for name in constructor.arguments}
    if contents.made is None or not contents.places.keys() <= ARGUMENTS - written:
        raise Unreadable("it does not have each argument once")
    if contents.asked & ASKED:
        raise Unreadable("something else asks for what will be another thing")


ARGUMENTS = frozenset(fsdp1.CONSTRUCTOR_ARGUMENTS[1:])


def _give(contents: Contents, spread: dict[Constructor, ast.expr], study: Study) -> None:
    """Let each constructor have the arguments, as expressions that take them out."""
    together = frozenset(spread)
    assert contents.made is not None  # else it was refused
    members = {entry.name: entry.value for entry in contents.members}
    place = _place(contents, spread)
    going = tuple((entry, contents.module) for entry in contents.going)
    shared = KeywordDictionary(
        SETTINGS, (), contents.made, (), together, stays=True, place=place, going=going
    )
    for constructor, dictionary in spread.items():
        constructor.dictionary, constructor.spread = shared, dictionary
        constructor.maker = contents.calls.get(constructor) if place is not None else None
        constructor.problem, constructor.is_open = "", False
        constructor.arguments |= members
        study.entries |= dict.fromkeys(members.values(), constructor)
        for argument in (name for name in contents.places if name not in members):
            taken, around = dictionary, constructor.module.table.parents[dictionary]
            if place is not None:
                taken = ast.copy_location(ast.Name(shared.name), dictionary)
                constructor.module.table.within[taken] = constructor.module.table.within[dictionary]
            node = _expression(argument, contents, taken, around, constructor.module)
            study.tracer.stands_for[node] = _values(argument, node, contents, constructor, study)
            constructor.arguments[argument] = node


def _place(
    contents: Contents, spread: dict[Constructor, ast.expr]
) -> tuple[Module, ast.stmt] | None:
    """Where one function can be written that shards the models of several constructors, if the
    dictionary has all that they are given."""
    function, calls = contents.function, contents.calls
    if function is None or len(spread) == 1:
        return None
    if any(constructor.arguments.keys() != {"module"} for constructor in spread):
        return None
    home = contents.module
    callers = ((call.func, constructor.module) for constructor, call in calls.items())
    known = all(
        module is home
        or isinstance(func, ast.Attribute)
        or (isinstance(func, ast.Name) and shared_functions.import_of(func, module))
        for func, module in callers
    )
    return (home, function) if known and function in home.source.tree.body else None


def _expression(
    name: str, contents: Contents, dictionary: ast.expr, around: ast.AST, module: Module
) -> ast.expr:
    """What is written for an argument, in the place of ``**dictionary``, which stands in
    ``around``."""
    constants = {repr(v.value) for v, _ in contents.places[name] if isinstance(v, ast.Constant)}
    node: ast.expr
    if len(constants) == 1 and name not in contents.lacking and _are_constants(name, contents):
        node = ast.Constant(contents.places[name][0][0].value)  # type: ignore[attr-defined]
    elif name in contents.lacking:
        given: list[ast.expr] = [ast.Constant(name)]
        if name in DEFAULTS:
            given.append(ast.Constant(DEFAULTS[name]))
        node = ast.Call(ast.Attribute(dictionary, "get", ast.Load()), given, [])
    else:
        node = ast.Subscript(dictionary, ast.Constant(name), ast.Load())
    table = module.table
    for parent in ast.walk(ast.fix_missing_locations(ast.copy_location(node, dictionary))):
        for child in ast.iter_child_nodes(parent) if parent is not dictionary else ():
            if child is not dictionary:
                table.parents[child] = parent
    table.parents[node] = around
    return node


def _are_constants(name: str, contents: Contents) -> bool:
    return all(isinstance(value, ast.Constant) for value, _ in contents.places[name])


def _values(
    name: str, node: ast.expr, contents: Contents, constructor: Constructor, study: Study
) -> Callable[[], Iterator[Value]]:
    """What an argument may be: anything that is put into the dictionary for it."""

    def found() -> Iterator[Value]:
        if name in contents.asked & CONVERTED - {"sharding_strategy"}:
            yield Unknown(node, constructor.module, None, CHANGED)
            return
        for value, module in contents.places[name]:
            yield from study.tracer.evaluate(value, module)
        if name in contents.lacking:
            default = ast.copy_location(ast.Constant(DEFAULTS.get(name)), node)
            yield from study.tracer.evaluate(default, constructor.module)

    return found


# -- made by functions ------------------------------------------------------------------------


def _of_functions(spread: dict[Constructor, ast.expr], study: Study) -> Found:
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


# -- attributes of classes --------------------------------------------------------------------


def _of_classes(spread: dict[Constructor, ast.expr], study: Study) -> Found:
    """Constructors that are given what an attribute has that one class of the project sets."""
    given: dict[str, list[Constructor]] = defaultdict(list)
    for constructor, dictionary in spread.items():
        if isinstance(dictionary, ast.Attribute):
            given[dictionary.attr].append(constructor)
    for name, constructors in given.items():
        yield constructors, partial(_of_class, name, spread, study)


def _of_class(name: str, spread: dict[Constructor, ast.expr], study: Study) -> Contents:
    """The dictionary that a class has under a name, and what is done with it anywhere.

    Raises:
        Unreadable: it cannot be read, or something else may have the name, or may get it.
    """
    made: list[tuple[Module, Scope]] = []
    uses: list[tuple[ast.Attribute, Module]] = []
    for module in study.project.read:
        if not module.mentions(name):
            continue
        table = module.table
        keywords = {keyword.arg for call in table.calls for keyword in call.keywords}
        if name in keywords or any(string.value == name for string in table.strings):
            raise Unreadable("something may ask for it by its name")
        made += [(module, s) for s in table.scopes.values() if s.is_class and name in s.bindings]
        uses += [(attribute, module) for attribute in table.attributes_by_name.named(name)]
    if len(made) != 1:
        raise Unreadable("it is not just made once")
    home, scope = made[0]
    [(statement, display), *others] = written_dictionaries.made_by(name, scope)
    entries = tuple(written_dictionaries.items_of(display, statement))
    read = [n for n in home.table.names_by_id.named(name) if home.table.within[n] is scope]
    if others or len(read) != 1:
        raise Unreadable("it is not just made once")
    contents = Contents(home, entries)
    for use, module in uses:
        read_use(use, module, contents, set(spread.values()))
    return contents
