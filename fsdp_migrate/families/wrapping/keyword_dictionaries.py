"""Arguments that stand in a dictionary: ``params = dict(...)``, then ``FSDP(model, **params)``.

They are read as if they were written at the call, and written where they stood
(``dictionary_entries.py``): the dictionary gets FSDP2's keys, and ``fully_shard(model, **params)``
takes it. What a loop or another statement at the call needs, such as a wrap policy, leaves the
dictionary.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Entry, KeywordDictionary
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import of_kind, present
from fsdp_migrate.syntax.scopes import Kind, Scope
from fsdp_migrate.syntax.trees import block_of

# What a dictionary may have or lack: nothing but the value of its entry depends on these.
OPTIONAL = frozenset(
    {
        "backward_prefetch",
        "forward_prefetch",
        "limit_all_gathers",
        "mixed_precision",
        "sharding_strategy",
        "use_orig_params",
    }
)
# What it may have in several places: the last that runs is meant.
SEVERAL = frozenset({"sharding_strategy"})

Made = tuple[ast.stmt, ast.Call | ast.Dict]  # a dictionary, and the statement that makes it


class Unreadable(Exception):
    """The dictionary is used in a way that is not understood."""


def register(study: Study) -> None:
    """Give constructors the arguments that stand in dictionaries."""
    _register_partials(study)
    given: dict[tuple[Scope, str], list[Constructor]] = defaultdict(list)
    for constructor in study.constructors.values():
        name = spread_of(constructor, study)
        if isinstance(name, ast.Name):
            scope = constructor.module.table.scope_of(name).lookup(name.id)
            if scope is not None and not scope.is_class:
                given[scope, name.id].append(constructor)
    for (scope, spelled), constructors in given.items():
        try:
            dictionary = _read(spelled, scope, constructors, study)
        except Unreadable:
            continue
        give(dictionary, constructors, study)


def give(dictionary: KeywordDictionary, constructors: Sequence[Constructor], study: Study) -> None:
    """Let constructors have the arguments of a dictionary."""
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


def _read(
    name: str, scope: Scope, constructors: list[Constructor], study: Study
) -> KeywordDictionary:
    """The dictionary that has a name in a scope.

    Raises:
        Unreadable: it is made, changed or read in another way, or has what is no argument.
    """
    module = constructors[0].module
    if is_known_elsewhere(name, scope, module, study):
        raise Unreadable("another file may change it")
    calls = {constructor.call for constructor in constructors}
    readers = {k for call in calls for k in call.keywords}
    entries = tuple(entries_of(name, scope, readers, module))
    last = max(e.statement.end_lineno or e.statement.lineno for e in entries) if entries else 0
    if any(call.lineno <= last for call in calls):
        raise Unreadable("it changes after the call")
    check(entries, constructors)
    for entry in entries:
        for constructor in constructors:
            check_names(entry, scope, constructor)
    made = made_by(name, scope)
    statements = tuple(statement for statement, _ in made)
    return KeywordDictionary(name, statements, made[0][1], entries, frozenset(constructors))


def check(entries: tuple[Entry, ...], constructors: Iterable[Constructor]) -> None:
    """Refuse entries that are not arguments which each constructor is given once.

    Raises:
        Unreadable: they are not.
    """
    places = _places(entries)
    written = {name for constructor in constructors for name in constructor.arguments}
    if not entries or not places.keys() <= set(fsdp1.CONSTRUCTOR_ARGUMENTS[1:]) - written:
        raise Unreadable("it does not have each argument once")
    for name, same in places.items():
        is_same = len({ast.dump(e.value) for e in same}) == 1 and _is_plain(same[0].value)
        is_made = name == "mixed_precision" and isinstance(same[0].value, ast.Call)
        if len(same) > 1 and name not in SEVERAL and (is_made or not is_same):
            raise Unreadable(f"it has {name} more than once")
        if all(entry.is_conditional for entry in same) and name not in OPTIONAL:
            raise Unreadable(f"it may lack {name}")


def _places(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """By the argument, where a dictionary has it."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.name].append(entry)
    return found


def _is_plain(value: ast.expr) -> bool:
    """Whether a value is a constant, a path, or a call with nothing but these."""
    if isinstance(value, ast.Call):
        given = [*value.args, *(keyword.value for keyword in value.keywords)]
        return all(map(_is_plain, (value.func, *given)))
    return isinstance(value, ast.Constant) or access_path(value) is not None


def entries_of(
    name: str, scope: Scope, readers: Collection[ast.AST], module: Module
) -> Iterator[Entry]:
    """The entries of the dictionary that has a name in a scope.

    Args:
        readers: what may read it as a whole.

    Raises:
        Unreadable: it is made, changed or read in another way.
    """
    made = made_by(name, scope)
    own = {statement: list(items_of(written, statement)) for statement, written in made}
    for_all: list[Entry] = []
    for use in module.table.names_by_id.named(name):
        parent = module.table.parents[use]
        is_meant = module.table.within[use].lookup(name) is scope
        if is_meant and parent not in readers and parent not in own:
            changed = next((s for s in reversed(own) if _is_behind(use, s, module)), None)
            into = for_all if changed is None else own[changed]
            into.extend(_changes(use, changed or _around([*own], module), module))
    yield from either(own.values())
    yield from for_all


def _is_behind(node: ast.AST, statement: ast.stmt, module: Module) -> bool:
    """Whether a node stands in the block of a statement, or in one inside of it."""
    block = block_of(module.table.parents[statement], statement)
    return not {*module.table.ancestors(node)}.isdisjoint(block)


def _around(statements: Sequence[ast.stmt], module: Module) -> ast.stmt:
    """The condition whose branches statements stand in.

    Raises:
        Unreadable: they stand otherwise.
    """
    around = [[*module.table.ancestors(statement)] for statement in statements]
    whole = next(node for node in around[0] if all(node in others for others in around))
    if not isinstance(whole, ast.If):
        raise Unreadable("it changes, and not where it is made")
    return whole


def made_by(name: str, scope: Scope) -> list[Made]:
    """The dictionaries that have a name, and the statements that make them.

    Raises:
        Unreadable: it may be something else.
    """
    found = []
    for binding in scope.bindings[name]:
        if binding.kind is Kind.AUGMENT:
            continue
        if binding.kind is not Kind.ASSIGN or binding.unpack:
            raise Unreadable("it is made in another way")
        statement = binding.node
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        if len(targets) != 1 and not isinstance(statement, ast.AnnAssign):
            raise Unreadable("it has several names")
        found.append((of_kind(statement, ast.stmt), display(binding.value, scope)))
    if not found:
        raise Unreadable("it is made in another way")
    return found


def either(dictionaries: Collection[Sequence[Entry]]) -> Iterator[Entry]:
    """The entries of dictionaries of which the program makes one."""
    certain = [{e.name for e in entries if not e.is_conditional} for entries in dictionaries]
    for entry in (entry for entries in dictionaries for entry in entries):
        lacking = any(entry.name not in names for names in certain)
        yield replace(entry, is_conditional=entry.is_conditional or lacking)


def display(made: object, scope: Scope) -> ast.Call | ast.Dict:
    """A dictionary that is written out.

    Raises:
        Unreadable: it is something else.
    """
    match made:
        case ast.Dict():
            return made
        case ast.Call(func=ast.Name(id="dict"), args=[]) if scope.lookup("dict") is None:
            return made
    raise Unreadable("it is made in another way")


def items_of(
    made: ast.Call | ast.Dict, statement: ast.stmt, *, conditional: bool = False
) -> Iterator[Entry]:
    """The entries of ``dict(...)`` or ``{...}``."""
    pairs: list[tuple[object, ast.keyword | ast.expr, ast.expr, ast.keyword | ast.expr]] = []
    if isinstance(made, ast.Call):
        pairs = [(k.arg, k, k.value, k) for k in made.keywords]
    else:
        for key, value in zip(made.keys, made.values, strict=True):
            name = key.value if isinstance(key, ast.Constant) else None
            pairs.append((name, value, value, value if key is None else key))
    for said, node, value, key_node in pairs:
        yield Entry(_argument(said), node, value, key_node, statement, conditional, made)


def _changes(use: ast.Name, made: ast.stmt, module: Module) -> Iterator[Entry]:
    """What a statement adds: ``params["name"] = value``, ``params.update(name=value)`` or ``|=``.

    It stands in the dictionary's own block or under an ``if`` of it.
    """
    node = module.table.parents[use]
    statement = module.table.statement(use)
    conditional = _is_conditional(statement, made, module)
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=target, slice=ast.Constant(value=key))]) if (
            target is use
        ):
            name, value = _argument(key), statement.value
            yield Entry(
                name, value, value, of_kind(node, ast.Subscript).slice, statement, conditional
            )
        case ast.AugAssign(target=target, op=ast.BitOr(), value=ast.Dict() as added) if (
            target is use
        ):
            yield from items_of(added, statement, conditional=conditional)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="update")) as call) if (
            target is use
        ):
            match call:
                case ast.Call(args=[]):
                    yield from items_of(call, statement, conditional=conditional)
                case ast.Call(args=[ast.Dict() as added], keywords=[]):
                    yield from items_of(added, statement, conditional=conditional)
                case _:
                    raise Unreadable("it is updated from elsewhere")
        case _:
            raise Unreadable("it is used for something else")


def _is_conditional(statement: ast.stmt, made: ast.stmt, module: Module) -> bool:
    """Whether a later statement is under an ``if`` that the dictionary is not.

    Raises:
        Unreadable: it is under something else, or runs before.
    """
    block = block_of(module.table.parents[made], made)
    child: ast.AST = statement
    while block_of(module.table.parents[child], of_kind(child, ast.stmt)) is not block:
        parent = module.table.parents[child]
        if not isinstance(parent, ast.If):
            raise Unreadable("it changes under more than a condition")
        child = parent
    if statement.lineno <= (made.end_lineno or 0):
        raise Unreadable("it changes before it is made")
    return child is not statement


def _argument(key: object) -> str:
    """The name that an argument of FSDP1 has today."""
    if not isinstance(key, str):
        raise Unreadable("a key is not written out")
    return fsdp1.EARLIER_NAMES.get(key, key)


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
    for node in ast.walk(constructor.module.source.tree) if read else ():
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and _line(node) in between and last_name(node) in read:
            raise Unreadable(f"{last_name(node)} may be another at the call")


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)
