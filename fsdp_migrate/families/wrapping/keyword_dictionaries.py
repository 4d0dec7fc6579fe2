"""Arguments that stand in a dictionary: ``params = dict(...)``, then ``FSDP(model, **params)``.

They are read as if they were written at the call, and written where they stood
(``dictionary_entries.py``): the dictionary gets FSDP2's keys, and ``fully_shard(model, **params)``
takes it. What a loop or another statement at the call needs, such as a wrap policy, leaves the
dictionary.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study, block_of
from fsdp_migrate.planning.model import Constructor, Entry, KeywordDictionary
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind, present
from fsdp_migrate.syntax.scopes import Kind, Scope

# What a dictionary may have or lack: nothing but the value of its entry depends on these.
OPTIONAL = frozenset(
    {"backward_prefetch", "forward_prefetch", "limit_all_gathers", "mixed_precision"}
)


class Unreadable(Exception):
    """The dictionary is used in a way that is not understood."""


def register(study: Study) -> None:
    """Give constructors the arguments that stand in dictionaries."""
    _register_partials(study)
    given: dict[tuple[Scope, str], list[Constructor]] = defaultdict(list)
    for constructor in study.constructors.values():
        name = _spread_name(constructor, study)
        if name is not None:
            scope = constructor.module.table.scope_of(name).lookup(name.id)
            if scope is not None and not scope.is_class:
                given[scope, name.id].append(constructor)
    for (scope, spelled), constructors in given.items():
        try:
            dictionary = _read(spelled, scope, constructors, study)
        except Unreadable:
            continue
        for constructor in constructors:
            constructor.dictionary = dictionary
            constructor.problem, constructor.is_open = "", False
            constructor.arguments |= {e.name: e.value for e in dictionary.entries}
        study.entries |= {entry.node: constructors[0] for entry in dictionary.entries}
        study.entries |= {entry.value: constructors[0] for entry in dictionary.entries}


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
        or _is_known_elsewhere(name, scope, module, study)
    ):
        raise Unreadable("its name has several values")
    match [table.parents[use] for use in table.reads(name, scope)]:
        case [ast.Call(func=ast.Name(id=called), args=[given], keywords=[]) as call] if (
            called == name and not isinstance(given, ast.Starred)
        ):
            pass
        case _:
            raise Unreadable("it is not just called once, with a model")
    entries = tuple(_items(partial, statement, module))
    if not {entry.name for entry in entries} <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]):
        raise Unreadable("it has what is no argument")
    if call.lineno <= partial.lineno or table.scope_of(call).home() is not scope.home():
        raise Unreadable("it is called elsewhere")
    constructor.call = call
    for entry in entries:
        _check_names(entry, scope, constructor)
    shared = frozenset({constructor})
    return call, KeywordDictionary(name, statement, partial, entries, shared, is_partial=True)


def _is_known_elsewhere(name: str, scope: Scope, module: Module, study: Study) -> bool:
    """Whether another file may read or change what has a name at the top of a file."""
    return scope is module.table.module and any(
        other is not module and other.mentions(name) for other in study.project.modules
    )


def _spread_name(constructor: Constructor, study: Study) -> ast.Name | None:
    """``params``, where ``**params`` is all that cannot be read at a call."""
    if constructor.call in study.run_time or constructor in study.wrapping.constructors:
        return None
    if constructor.is_wrong or not constructor.has_module or constructor.defined_by:
        return None
    if any(isinstance(argument, ast.Starred) for argument in constructor.call.args):
        return None
    opened = [k.value for k in constructor.call.keywords if k.arg is None]
    name = opened[0] if len(opened) == 1 else None
    is_all = (
        constructor.problem == f"its keyword arguments come from **{name and ast.unparse(name)}"
    )
    return name if isinstance(name, ast.Name) and is_all else None


def _read(
    name: str, scope: Scope, constructors: list[Constructor], study: Study
) -> KeywordDictionary:
    """The dictionary that has a name in a scope.

    Raises:
        Unreadable: it is made, changed or read in another way, or has what is no argument.
    """
    module = constructors[0].module
    if _is_known_elsewhere(name, scope, module, study):
        raise Unreadable("another file may change it")
    statement, made = _made(name, scope)
    entries = list(_items(made, statement, module))
    calls = {constructor.call for constructor in constructors}
    for use in module.table.names_by_id.named(name):
        if module.table.within[use].lookup(name) is not scope:
            continue
        parent = module.table.parents[use]
        if isinstance(parent, ast.keyword) and module.table.parents[parent] in calls:
            continue
        if parent is not statement:
            entries.append(_set_item(parent, statement, module))
    names = [entry.name for entry in entries]
    last = max(e.statement.end_lineno or e.statement.lineno for e in entries) if entries else 0
    written = {name for c in constructors for name in c.arguments}
    if (
        not entries
        or len(set(names)) < len(names)
        or not set(names) <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]) - written
        or any(call.lineno <= last for call in calls)
    ):
        raise Unreadable("it does not have each argument once, before the calls")
    for entry in entries:
        if entry.is_conditional and entry.name not in OPTIONAL:
            raise Unreadable(f"it may lack {entry.name}")
        for constructor in constructors:
            _check_names(entry, scope, constructor)
    return KeywordDictionary(name, statement, made, tuple(entries), frozenset(constructors))


def _made(name: str, scope: Scope) -> tuple[ast.stmt, ast.Call | ast.Dict]:
    """The only statement that gives the name a value, and the dictionary made there."""
    match scope.bindings[name]:
        case [binding] if binding.kind is Kind.ASSIGN and not binding.unpack:
            pass
        case _:
            raise Unreadable("its name has several values")
    statement, made = binding.node, binding.value
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    if len(targets) != 1 and not isinstance(statement, ast.AnnAssign):
        raise Unreadable("it has several names")
    match made:
        case ast.Dict():
            return of_kind(statement, ast.stmt), made
        case ast.Call(func=ast.Name(id="dict"), args=[]) if scope.lookup("dict") is None:
            return of_kind(statement, ast.stmt), made
    raise Unreadable("it is made in another way")


def _items(made: ast.Call | ast.Dict, statement: ast.stmt, module: Module) -> Iterator[Entry]:
    """The entries that are written where the dictionary is made."""
    if isinstance(made, ast.Call):
        for keyword in made.keywords:
            name = _argument(keyword.arg)
            yield Entry(name, keyword, keyword.value, keyword, statement, is_conditional=False)
        return
    for key, value in zip(made.keys, made.values, strict=True):
        name = _argument(key.value if isinstance(key, ast.Constant) else None)
        yield Entry(name, value, value, present(key), statement, is_conditional=False)


def _set_item(node: ast.AST, made: ast.stmt, module: Module) -> Entry:
    """``params["name"] = value``, in the dictionary's own block or under an ``if`` of it."""
    statement = module.table.parents[node]
    match node, statement:
        case ast.Subscript(slice=ast.Constant(value=key)), ast.Assign(targets=[target]) if (
            target is node
        ):
            name = _argument(key)
        case _:
            raise Unreadable("it is used for something else")
    block = block_of(module.table.parents[made], made)
    child: ast.stmt = statement
    while block_of(module.table.parents[child], child) is not block:
        parent = module.table.parents[child]
        if not isinstance(parent, ast.If):
            raise Unreadable("it changes under more than a condition")
        child = parent
    if statement.lineno <= (made.end_lineno or 0):
        raise Unreadable("it changes before it is made")
    conditional = child is not statement
    value = statement.value
    return Entry(name, value, value, of_kind(node, ast.Subscript).slice, statement, conditional)


def _argument(key: object) -> str:
    """The name that an argument of FSDP1 has today."""
    if not isinstance(key, str):
        raise Unreadable("a key is not written out")
    return fsdp1.EARLIER_NAMES.get(key, key)


def _check_names(entry: Entry, scope: Scope, constructor: Constructor) -> None:
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
    for node in ast.walk(constructor.module.source.tree) if read else ():
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and _line(node) in between and last_name(node) in read:
            raise Unreadable(f"{last_name(node)} may be another at the call")


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
