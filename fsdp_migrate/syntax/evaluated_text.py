"""Text that a module evaluates: names in it are uses that no ``ast.Name`` shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.name_table import NameTable

EVALUATING = frozenset({"eval", "exec"})
ASKED = EVALUATING | {"globals"}
PLAIN = frozenset({"int", "float", "bool", "str", "complex", "bytes"})


Told = Callable[[ast.expr], list[str] | None]  # the texts that an expression may be, if known


def may_name(
    name: str,
    table: NameTable,
    told: Told = lambda _: None,
    file_may: Callable[[ast.Call], bool] = lambda _: True,
) -> bool:
    """Whether something that ``eval`` or ``exec`` is given, or a key by which ``globals()`` is
    asked, may name ``name``. Text that is not in sight may, unless ``file_may`` says that the file
    does not whose text a call executes."""
    return any(
        (text is None and (last_name(call.func) != "exec" or file_may(call)))
        or (text is not None and _has(name, text))
        for call, text in _texts(table, told)
    )


def names(name: str, table: NameTable) -> bool:
    """Whether text in sight that ``eval``, ``exec`` or ``globals()`` is given names ``name``."""
    texts = _texts(table, lambda _: None)
    return any(text is not None and _has(name, text) for _, text in texts)


def setting_names(table: NameTable) -> Iterator[ast.Call]:
    """Calls that may give names of the module other values: ``exec(open(path).read())``,
    ``globals().update(settings)``, ``globals()[key] = value``."""
    for call in table.calls_by_name.of({"exec", "globals"}):
        if not isinstance(call.func, ast.Name) or table.within[call.func].lookup(call.func.id):
            continue
        parent = table.parents[call]
        match parent:
            case _ if call.func.id == "exec":
                own = len(call.args) > 1 or call.keywords  # names of its own, or globals()
                given = call.args[1] if len(call.args) > 1 else None
                shared = isinstance(given, ast.Call) and ast.unparse(given) == "globals()"
                if call.args and (shared or not own):
                    yield call
            case ast.Attribute(attr="update" | "__setitem__" | "__ior__"):
                yield call
            case ast.Subscript(slice=key, ctx=ast.Store()) if not isinstance(key, ast.Constant):
                yield call


def may_set(name: str, call: ast.Call) -> bool:
    """Whether one of `setting_names` may set ``name``: text in sight sets what it names."""
    text = call.args[0] if call.args else None
    return not isinstance(text, ast.Constant) or _has(name, str(text.value))


def _texts(table: NameTable, told: Told) -> Iterator[tuple[ast.Call, str | None]]:
    """What is evaluated, and by which call; None for what is not in sight."""
    for call in table.calls_by_name.of(ASKED):
        if not isinstance(call.func, ast.Name) or table.within[call.func].lookup(call.func.id):
            continue
        if call.func.id == "globals" and _has_plain_values(call, table):
            continue
        if call.func.id == "globals":
            yield from ((call, key) for key in _keys(call, table, told))
        elif call.func.id in EVALUATING and call.args:
            yield call, " ".join(_literal_parts(call.args[0])) or None


def _has_plain_values(call: ast.Call, table: NameTable) -> bool:
    """Whether what a module's names are asked for is settings that are numbers and texts: of
    ``globals().items()`` those that ``isinstance`` says so of, or one of the names found so."""
    match table.parents[call]:
        case ast.Attribute(attr="items") as method:
            loop = table.parents[table.parents[method]]
            return isinstance(loop, ast.comprehension) and _keeps_plain_values(loop)
        case ast.Subscript(slice=ast.Name(id=key), ctx=ast.Load()):
            for above in table.ancestors(call):
                for loop in getattr(above, "generators", ()):
                    match loop:
                        case ast.comprehension(target=ast.Name(id=name), iter=ast.Name() as keys):
                            return name == key and _are_names_of_plain_values(keys, table)
    return False


def _keeps_plain_values(loop: ast.comprehension) -> bool:
    match loop.target:
        case ast.Tuple(elts=[_, ast.Name(id=value)]):
            tests = [t for each in loop.ifs for t in _all_of(each)]
            return any(_is_plain(test, value) for test in tests)
    return False


def _all_of(test: ast.expr) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return test.values
    return [test]


def _is_plain(test: ast.expr, value: str) -> bool:
    match test:
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name(id=asked), kinds]):
            listed = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
            return asked == value and all(isinstance(k, ast.Name) and k.id in PLAIN for k in listed)
    return False


def _are_names_of_plain_values(keys: ast.Name, table: NameTable) -> bool:
    scope = table.within[keys].lookup(keys.id)
    bindings = scope.bindings.get(keys.id, []) if scope is not None else []
    return bool(bindings) and all(
        isinstance(b.value, ast.ListComp)
        and ast.unparse(b.value.generators[0].iter) == "globals().items()"
        and _keeps_plain_values(b.value.generators[0])
        for b in bindings
    )


def _keys(call: ast.Call, table: NameTable, told: Told) -> Iterator[str | None]:
    """The keys by which ``globals()`` is asked at one place."""
    match table.parents[call]:
        case ast.Subscript(value=inside, slice=key, ctx=context) if inside is call:
            if not isinstance(context, ast.Load):
                return  # it binds a name, or deletes one
        case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[asked]) if (
            asked is call
        ):
            pass
        case ast.Attribute(attr="get") as method:
            get = table.parents[method]
            key = get.args[0] if isinstance(get, ast.Call) and get.args else method
        case _:
            yield None
            return
    if isinstance(key, ast.Constant):
        yield str(key.value)
        return
    known = told(key)
    if known is None:
        yield None
    else:
        yield from known


def _has(name: str, text: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _literal_parts(text: ast.expr) -> Iterator[str]:
    values = text.values if isinstance(text, ast.JoinedStr) else [text]
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value
