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

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Unknown, Value
from fsdp_migrate.families.wrapping import (
    keyword_dictionaries,
    refused_modules,
    shared_functions,
    taken_from_functions,
    taken_from_modules,
    taken_from_variables,
    written_dictionaries,
)
from fsdp_migrate.families.wrapping.joined_contents import DEFAULTS
from fsdp_migrate.families.wrapping.run_time import CONVERTED
from fsdp_migrate.families.wrapping.taken_contents import Contents, Found, read_use
from fsdp_migrate.families.wrapping.written_dictionaries import Unreadable
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, KeywordDictionary
from fsdp_migrate.syntax.scopes import Scope

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
        taken_from_functions.of_functions,
        _of_classes,
        taken_from_modules.of_modules,
        taken_from_variables.of_variables,
    )
    for constructors, read in (each for find in finders for each in find(spread, study)):
        try:
            contents = read()
            contents.find_idle(study)
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
    for constructor in constructors:
        view = contents.view(constructor)
        given, written = view.places.keys(), constructor.arguments.keys()
        if refused_modules.refusal(constructor, study, given) is not None:
            raise Unreadable("one of the modules takes no fully_shard")
        if contents.made is None or not given <= ARGUMENTS - written:
            raise Unreadable("it does not have each argument once")
        if view.asked & ASKED:
            raise Unreadable("something else asks for what will be another thing")
    _ = contents.going  # of which something may be felt


ARGUMENTS = frozenset(fsdp1.CONSTRUCTOR_ARGUMENTS[1:])


def _give(contents: Contents, spread: dict[Constructor, ast.expr], study: Study) -> None:
    """Let each constructor have the arguments, as expressions that take them out."""
    together = frozenset(spread)
    assert contents.made is not None  # else it was refused
    members = {entry.name: entry.value for entry in contents.members}
    place = _place(contents, spread)
    going = tuple(contents.going)
    shared = KeywordDictionary(
        SETTINGS, (), contents.made, (), together, stays=True, place=place, going=going
    )
    for constructor, dictionary in spread.items():
        constructor.dictionary, constructor.spread = shared, dictionary
        constructor.maker = contents.calls.get(constructor) if place is not None else None
        constructor.problem, constructor.is_open = "", False
        constructor.arguments |= members
        study.entries |= dict.fromkeys(members.values(), constructor)
        view = contents.view(constructor)
        for argument in (n for n in view.places if n not in {*members, *view.idle}):
            taken, around = dictionary, constructor.module.table.parents[dictionary]
            if place is not None:
                taken = ast.copy_location(ast.Name(shared.name), dictionary)
                constructor.module.table.within[taken] = constructor.module.table.within[dictionary]
            node = _expression(argument, view, taken, around, constructor.module)
            study.tracer.stands_for[node] = _values(argument, node, view, constructor, study)
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
        read_use(use, module, contents, set(spread.values()), stays=True)
    return contents
