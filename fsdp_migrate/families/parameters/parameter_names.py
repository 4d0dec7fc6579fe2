"""What a loop over named parameters makes of their names.

``if "bias" in name: ...`` tells parameters apart by them, and so does ``decays = "bias" not in
name`` above ``if decays: ...``, ``groups[kind_of(name)].append(p)``, ``{"params": [p], "lr":
rate_of(name)}`` and ``p.requires_grad = "bias" in name``. What only labels does not: ``norms[name]
= p.norm()``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import walk

LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
PASSING_ON = frozenset({"list", "tuple", "sorted", "reversed", "filter", "chain"})
LOOK_UPS = frozenset({"get", "pop", "setdefault"})  # of a dictionary, by a name
GATHERING = frozenset({"append", "add", "extend"})
FREEZING = "requires_grad"
MEMBERS = "params"


def names_given(loop: ast.expr | ast.stmt) -> set[str]:
    """``n`` of ``for i, (n, p) in enumerate(model.named_parameters())``, and of comprehensions."""
    return {name for target, given in _loops(loop) for name in _names(target, given)}


def places_given(loop: ast.expr | ast.stmt) -> set[str]:
    """``i`` of ``for i, p in enumerate(model.parameters())``."""
    return {
        target.elts[0].id
        for target, given in _loops(loop)
        if isinstance(target, ast.Tuple)
        and isinstance(target.elts[0], ast.Name)
        and _called(given) == "enumerate"
    }


def _loops(loop: ast.expr | ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The variables of a loop and what it goes over: of the first one of a comprehension."""
    first = next(iter(getattr(loop, "generators", ())), loop)
    if isinstance(first, LOOPS):
        yield first.target, first.iter


def _names(target: ast.expr, given: ast.expr) -> Iterator[str]:
    if not isinstance(target, ast.Tuple) or not target.elts:
        return
    called = _called(given)
    arguments = given.args if isinstance(given, ast.Call) else []
    if called == "enumerate" and arguments and len(target.elts) == 2:
        yield from _names(target.elts[1], arguments[0])
    elif called == "zip":
        for part, each in zip(target.elts, arguments, strict=False):
            yield from _names(part, each)
    elif called in PASSING_ON and arguments:
        yield from _names(target, arguments[-1])
    elif isinstance(target.elts[0], ast.Name):
        yield target.elts[0].id


def _called(given: ast.expr) -> str:
    return last_name(given.func) if isinstance(given, ast.Call) else ""


def is_filtered(loop: ast.expr | ast.stmt) -> bool:
    """Whether ``filter`` looks at the names: ``filter(lambda pair: "bias" in pair[0], named)``."""
    calls = [n for _, given in _loops(loop) for n in walk(given) if isinstance(n, ast.Call)]
    return any(
        isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) and n.slice.value == 0
        for call in calls
        if _called(call) == "filter" and isinstance(call.args[0], ast.Lambda)
        for n in walk(call.args[0].body)
    )


def decides(names: set[str], region: Sequence[ast.AST]) -> bool:
    """Whether it depends on these names what becomes of the loop's parameters."""
    nodes = [node for part in region for node in walk(part)]
    told = _told(names, nodes)
    if not names or any(_is_of_group(node, told) for node in nodes):
        return False
    return any(_is_decided(node, names, told) for node in nodes if not only_raises(node))


def _is_of_group(node: ast.AST, told: set[str]) -> bool:
    """Whether these are the names of an optimizer's settings: ``key != "params"``."""
    match node:
        case ast.Compare(left=left, comparators=[ast.Constant(value=value)]):
            return value == MEMBERS and bool(names_in(left) & told)
    return False


def only_raises(node: ast.AST) -> bool:
    """Whether a condition does nothing but stop the program: whoever passed it goes on alike."""
    match node:
        case ast.If(body=[*before, ast.Raise()], orelse=[]):
            return all(isinstance(each, (ast.Expr, ast.Assign)) for each in before)
    return False


def _told(names: set[str], nodes: Sequence[ast.AST]) -> set[str]:
    """The names, and the variables that are made of them: ``kind = kind_of(name)``."""
    told, before = set(names), 0
    while len(told) > before:
        before = len(told)
        for node in nodes:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=made)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=made), value=ast.expr() as value)
                    | ast.NamedExpr(target=ast.Name(id=made), value=value)
                ) if _is_made_of(value, told):
                    told.add(made)
    return told


def _is_made_of(value: ast.expr, told: set[str]) -> bool:
    """Whether a value says something of a name, and is not what is kept under it."""
    match value:
        case ast.Dict() | ast.List() | ast.Tuple() | ast.Set():
            return False
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in LOOK_UPS:
            return False
        case ast.Subscript(value=owner):
            return bool(names_in(owner) & told)  # of name.split("."), not of averages[name]
    return bool(names_in(value) & told)


def _is_decided(node: ast.AST, names: set[str], told: set[str]) -> bool:
    if any(names_in(test) & told for test in tests_of(node)):
        return True
    match node:
        case ast.Call(
            func=ast.Attribute(
                value=ast.Subscript(slice=key)
                | ast.Call(func=ast.Attribute(attr="setdefault"), args=[key, _]),
                attr=attr,
            )
        ) if attr in GATHERING:
            return bool(names_in(key) & told) and not _is_one_of(key, names)
        case ast.Dict(keys=keys, values=values):
            given = {getattr(key, "value", None): v for key, v in zip(keys, values, strict=True)}
            return _is_group(given, told)
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            return _is_group({k.arg: k.value for k in keywords}, told)
        case ast.Assign(targets=[ast.Attribute(attr=attr)], value=value) if attr == FREEZING:
            return bool(names_in(value) & told)
        case ast.Call(func=ast.Attribute(attr="requires_grad_"), args=[value]):
            return bool(names_in(value) & told)
    return False


def _is_group(given: dict[object, ast.expr], told: set[str]) -> bool:
    """Whether a setting of a group of parameters is made of a name."""
    settings = [v for key, v in given.items() if key not in (MEMBERS, "name", "names")]
    return MEMBERS in given and any(names_in(value) & told for value in settings)


def _is_one_of(key: ast.expr, names: set[str]) -> bool:
    """Whether a list is kept for each name, as a label."""
    return isinstance(key, ast.Name) and key.id in names


def tests_of(node: ast.AST) -> list[ast.expr]:
    """The conditions that a node decides by: of ``if``, ``x if y else z``, ``[... if ...]``."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            return [test]
        case ast.Match(subject=subject):
            return [subject]
        case ast.Expr(value=ast.BoolOp(values=[*conditions, _])):
            return conditions
        case ast.comprehension(ifs=conditions):
            return conditions
    return []
