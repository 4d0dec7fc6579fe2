"""Arguments that stand in a dictionary: ``params = dict(...)``, then ``FSDP(model, **params)``.

They are read as if they were written at the call, and written where they stood
(``dictionary_entries.py``): the dictionary gets FSDP2's keys, and ``fully_shard(model, **params)``
takes it. What a loop or another statement at the call needs, such as a wrap policy, leaves the
dictionary.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import partial_functions
from fsdp_migrate.families.wrapping.written_dictionaries import (
    Unreadable,
    entries_at,
    entries_of,
    is_told,
    items_of,
    made_by,
)
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry, KeywordDictionary
from fsdp_migrate.syntax.kinds import of_kind, present
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import block_of

# What a dictionary may have or lack: nothing but the value of its entry depends on these.
OPTIONAL = frozenset(
    {
        "backward_prefetch",
        "cpu_offload",
        "forward_prefetch",
        "limit_all_gathers",
        "mixed_precision",
        "process_group",
        "sharding_strategy",
        "use_orig_params",
    }
)
# What FSDP1 does not take None for when it is not given.
NEVER_NONE = frozenset(
    {
        "backward_prefetch",
        "forward_prefetch",
        "limit_all_gathers",
        "sync_module_states",
        "use_orig_params",
    }
)
# What it may have in several places: the last that runs is meant.
SEVERAL = frozenset(
    {"sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers"}
)


def register(study: Study) -> None:
    """Give constructors the arguments that stand in dictionaries."""
    _register_partials(study)
    given: dict[tuple[Scope, str], list[Constructor]] = defaultdict(list)
    for constructor in study.constructors.values():
        name = spread_of(constructor, study)
        if isinstance(name, ast.Name) and constructor.call not in study.kept_dictionaries:
            scope = constructor.module.table.scope_of(name).lookup(name.id)
            if scope is not None and not scope.is_class:
                given[scope, name.id].append(constructor)
    for (scope, spelled), constructors in given.items():
        try:
            dictionary = read(spelled, scope, constructors, study)
        except Unreadable:
            continue
        give(dictionary, constructors, study)


def unwritable(study: Study) -> frozenset[ast.AST]:
    """The calls whose dictionaries were read, and cannot have FSDP2's arguments in the place of
    FSDP1's: they may stay as they are (``taken_entries.py``)."""
    return frozenset(
        sharer.call
        for constructor in study.unwritten
        if constructor.dictionary is not None and constructor.dictionary.is_spread
        for sharer in constructor.sharers
    )


def give(dictionary: KeywordDictionary, constructors: Sequence[Constructor], study: Study) -> None:
    """Let constructors have the arguments of a dictionary."""
    for constructor in reversed(constructors):
        constructor.dictionary = dictionary
        constructor.problem, constructor.is_open = "", False
        constructor.arguments |= {e.name: e.value for e in constructor.entries}
        study.entries |= {entry.node: constructor for entry in constructor.entries}
        study.entries |= {entry.value: constructor for entry in constructor.entries}


def _register_partials(study: Study) -> None:
    """Read ``wrap = functools.partial(FSDP, ...)`` as if ``wrap(model)`` had the arguments."""
    for partial, constructor in study.constructors.items():
        if (
            partial in study.run_time
            or constructor.problem != "they are bound by functools.partial"
        ):
            continue
        try:
            call, dictionary = _read_partial(constructor, study)
        except Unreadable:
            constructor.call = of_kind(partial, ast.Call)
            partial_functions.register(constructor, study)
            continue
        constructor.call, constructor.dictionary = call, dictionary
        constructor.problem, constructor.is_open = "", False
        constructor.arguments = {"module": call.args[0]}
        constructor.arguments |= {e.name: e.value for e in dictionary.entries}
        study.entries |= {entry.node: constructor for entry in dictionary.entries}


def _read_partial(constructor: Constructor, study: Study) -> tuple[ast.Call, KeywordDictionary]:
    """The only call of what ``functools.partial`` made, and the arguments that it has from there.

    Raises:
        Unreadable: it is used in another way.
    """
    partial, module = constructor.call, constructor.module
    table = module.table
    statement = table.parents[partial]
    match statement, partial.args:
        case ast.Assign(targets=[ast.Name(id=name)]), [_]:
            scope = present(table.scope_of(statement).lookup(name))
        case _:
            raise Unreadable("it has no name, or further arguments")
    if (
        len(scope.bindings[name]) != 1
        or scope.is_class
        or is_known_elsewhere(name, scope, module, study)
    ):
        raise Unreadable("its name has several values")
    match [table.parents[use] for use in table.reads(name, scope)]:
        case [ast.Call(func=ast.Name(id=called), args=[given], keywords=[]) as call] if (
            called == name and not isinstance(given, ast.Starred)
        ):
            pass
        case _:
            raise Unreadable("it is not just called once, with a model")
    entries = tuple(items_of(partial, statement))
    if not {entry.name for entry in entries} <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]):
        raise Unreadable("it has what is no argument")
    if call.lineno <= partial.lineno or table.scope_of(call).home() is not scope.home():
        raise Unreadable("it is called elsewhere")
    constructor.call = call
    for entry in entries:
        check_names(entry, scope, constructor)
    shared = frozenset({constructor})
    return call, KeywordDictionary(name, (statement,), partial, entries, shared, is_partial=True)


def is_known_elsewhere(name: str, scope: Scope, module: Module, study: Study) -> bool:
    """Whether another file may read or change what has a name at the top of a file."""
    return scope is module.table.module and any(
        other is not module and other.mentions(name) for other in study.project.modules
    )


def spread_of(constructor: Constructor, study: Study) -> ast.expr | None:
    """``params``, where ``**params`` is all that cannot be read at a call."""
    if constructor.call in study.run_time or constructor in study.wrapping.constructors:
        return None
    if constructor.is_wrong or not constructor.has_module or constructor.defined_by:
        return None
    if any(isinstance(argument, ast.Starred) for argument in constructor.call.args):
        return None
    opened = [k.value for k in constructor.call.keywords if k.arg is None]
    if len(opened) != 1:
        return None
    only = f"its keyword arguments come from **{ast.unparse(opened[0])}"
    return opened[0] if constructor.problem == only else None


def read(
    name: str,
    scope: Scope,
    constructors: list[Constructor],
    study: Study,
    others: Collection[ast.AST] = (),
) -> KeywordDictionary:
    """The dictionary that has a name in a scope.

    Args:
        others: what may read it besides the calls of the constructors.

    Raises:
        Unreadable: it is made, changed or read in another way, or has what is no argument.
    """
    module = constructors[0].module
    if is_known_elsewhere(name, scope, module, study):
        raise Unreadable("another file may change it")
    readers = {k for constructor in constructors for k in constructor.call.keywords} | {*others}
    entries = tuple(_certain(e, module) for e in entries_of(name, scope, readers, module))
    made = made_by(name, scope)
    views = dict.fromkeys(constructors, entries)
    if len(made) == 1:
        views = {c: tuple(entries_at(c.call, entries, module)) for c in constructors}
    for constructor, given in views.items():
        last = max((e.statement.end_lineno or e.statement.lineno for e in given), default=0)
        if constructor.call.lineno <= last:
            raise Unreadable("it changes after the call")
        check(given, [constructor])
        for entry in given:
            check_names(entry, scope, constructor)
    statements = tuple(statement for statement, _ in made)
    result = KeywordDictionary(name, statements, made[0][1], entries, frozenset(constructors))
    uses = (
        u
        for u in module.table.names_by_id.named(name)
        if module.table.within[u].lookup(name) is scope
    )
    result.is_told = any(is_told(use, module) for use in uses)
    if any(given != entries for given in views.values()):
        result.views = views
    return result


def _certain(entry: Entry, module: Module) -> Entry:
    """An entry that the dictionary lacks where its value is None: as if it always had it.

    ``mesh = None``, and then under a condition ``mesh = ...`` and ``params["device_mesh"] = mesh``.
    """
    value, table = entry.value, module.table
    if entry.name in NEVER_NONE or not entry.is_conditional or not isinstance(value, ast.Name):
        return entry
    scope = table.within[value].lookup(value.id)
    bound = scope.bindings[value.id] if scope is not None and scope.is_function else []
    match bound:
        case [first, second] if (
            first.kind is second.kind is Kind.ASSIGN
            and isinstance(first.value, ast.Constant)
            and first.value.value is None
            and isinstance(second.node, ast.stmt)
        ):
            above, beside = table.parents[first.node], table.parents[second.node]
            same = beside is table.parents[entry.statement] and isinstance(beside, ast.If)
            same = same and block_of(beside, second.node) is block_of(beside, entry.statement)
            same = same and _line(first.node) < _line(second.node)
            if same and _is_once_below(of_kind(beside, ast.If), above, module):
                return replace(entry, is_conditional=False)
    return entry


def _is_once_below(node: ast.If, above: ast.AST, module: Module) -> bool:
    """Whether an ``if`` stands in a block, or in conditions of it: in no loop, which would come
    back to it, and in no ``try`` or ``with``, which may go on behind it."""
    for parent in module.table.ancestors(node):
        if parent is above:
            return True
        if not isinstance(parent, ast.If):
            return False
    return False


def check(entries: tuple[Entry, ...], constructors: Collection[Constructor]) -> None:
    """Refuse entries that are not arguments which each constructor is given once.

    Raises:
        Unreadable: they are not.
    """
    places = _places(entries)
    written = {name for constructor in constructors for name in constructor.arguments}
    if not entries or not places.keys() <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]) - written:
        raise Unreadable("it does not have each argument once")
    module = next(iter(constructors)).module
    for name, given in places.items():
        is_made = name == "mixed_precision" and isinstance(given[0].value, ast.Call)
        is_one = not is_made and _is_one_value([entry.value for entry in given], module)
        if len(given) > 1 and name not in SEVERAL and not is_one:
            raise Unreadable(f"it has {name} more than once")
        may_lack = all(entry.is_conditional for entry in given)
        if may_lack and name not in OPTIONAL:
            raise Unreadable(f"it may lack {name}")
        if may_lack and name == "process_group" and "sync_module_states" in {*places, *written}:
            raise Unreadable("over which ranks weights are broadcast depends on a condition")
        if may_lack and name == "cpu_offload" and "param_init_fn" in {*places, *written}:
            raise Unreadable("where parameters get memory depends on a condition")


def _places(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """By the argument, where a dictionary has it."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.name].append(entry)
    return found


def _is_one_value(values: list[ast.expr], module: Module) -> bool:
    """Whether expressions in several places are spelled alike, and mean the same in each: nothing
    that they read is bound or set twice."""
    first = values[0]
    if len({ast.dump(value) for value in values}) > 1 or not _is_plain(first):
        return False
    table = module.table
    for name in (node for node in ast.walk(first) if isinstance(node, ast.Name)):
        scope = table.within[name].lookup(name.id)
        bound = scope.bindings[name.id] if scope is not None else []
        if len(bound) > 1 and any(binding.kind is not Kind.IMPORT for binding in bound):
            return False
    read = {node.attr for node in ast.walk(first) if isinstance(node, ast.Attribute)}
    return not any(stored.attr in read for stored in table.stored_attributes)


def _is_plain(value: ast.expr) -> bool:
    """Whether a value is a constant, a path, or a call with nothing but these."""
    if isinstance(value, ast.Call):
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
        return all(map(_is_plain, (value.func, *given)))
    return isinstance(value, ast.Constant) or access_path(value) is not None


def check_names(entry: Entry, scope: Scope, constructor: Constructor) -> None:
    """Refuse a value that would be another if it was asked for at the call."""
    table = constructor.module.table
    at_call = table.scope_of(constructor.call)
    for node in ast.walk(entry.value):
        if not isinstance(node, ast.Name):
            continue
        meant = table.within[node].lookup(node.id)
        if meant is not scope.lookup(node.id):
            continue  # a variable of the value's own
        bindings = scope.bindings[node.id] if meant is scope and scope.is_function else []
        later = any(_line(binding.node) > entry.statement.lineno for binding in bindings)
        if at_call.lookup(node.id) is not meant or later:
            raise Unreadable(f"{node.id} is another at the call")
    read = {node.attr for node in ast.walk(entry.value) if isinstance(node, ast.Attribute)}
    between = range(entry.statement.lineno + 1, constructor.call.lineno)
    for node in table.stored_attributes if read else ():
        if node.lineno in between and node.attr in read:
            raise Unreadable(f"{node.attr} may be another at the call")


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
