"""Members of FSDP1's enums, and its ``MixedPrecision`` objects, that another library is given, by
whatever way they get there.

A table of strategies, the default of a lookup in it, what a function returns, a field of the
settings: what a call out of sight takes is FSDP1's, and so is all that may be that value, and what
it is compared with. Only values know the way, and they are dear: calls of libraries are asked for
what they are given under a name that speaks of it.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.planning.context import Study

ENUMS = ("ShardingStrategy", "BackwardPrefetch")
OBJECT = "MixedPrecision"
SPEAKS = re.compile(r"strateg|shard|prefetch|precision|polic|(?:^|_)mp(?:_|$)", re.IGNORECASE)
WORDS = ("strateg", "shard", "prefetch", "precision", "polic", "mp")
# What is no member, nor such an object: a name, a number, a dtype, a flag.
PARTS = frozenset(
    {
        *("name", "value", "param_dtype", "reduce_dtype", "buffer_dtype"),
        *("keep_low_precision_grads", "cast_forward_inputs", "cast_root_forward_inputs"),
    }
)
# Of Python's and torch's own functions none but FSDP1's takes a member.
OWN = frozenset({*sys.stdlib_module_names, "torch", "click", "typer", "omegaconf", "hydra"})

Handed = dict[ast.AST, str]
"""The mentions of members and the calls that make objects, and the function out of sight that is
given each."""


def given_to(node: ast.AST, module: Module, study: Study) -> str:
    """The function out of sight that may be given what is mentioned at a place, or that it is
    compared with; an empty text where there is none."""
    handed = study.cache(_handed)
    if not handed:
        return ""
    for each in (node, module.table.parents.get(node)):
        if each in handed:
            return handed[each]
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.Compare):
            met = (_met(o, module, study) for o in (parent.left, *parent.comparators))
            return next((handed[n] for nodes in met for n in nodes if n in handed), "")
        if isinstance(parent, (ast.stmt, ast.arg)):
            if _is_type(node, parent, module):  # of one of these, as far as that can be told
                return next((to for each, to in handed.items() if each in module.table.parents), "")
            break
    return ""


def _is_type(node: ast.AST, holder: ast.AST, module: Module) -> bool:
    types = (getattr(holder, name, None) for name in ("annotation", "returns"))
    around = {node, *module.table.ancestors(node)}
    return any(each in around for each in types if each is not None)


def _handed(study: Study) -> Handed:
    found: Handed = {}
    if not study.project.mentions(*ENUMS, OBJECT):
        return found
    for module in study.project.modules:
        if not module.mentions(*WORDS, *(word.capitalize() for word in WORDS)):
            continue
        for call in module.table.calls:
            given = dict(_speaking(call))
            stranger = _stranger(call, module, study) if given else ""
            for argument, is_spread in given.items() if stranger else ():
                met = list(_met(argument, module, study))
                if is_spread and not met:
                    met = list(_entries(module, study))
                found |= {node: stranger for node in met if node not in found}
    return found


def _speaking(call: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
    """The arguments that may be a member, by how they or their parameters are called, and whether
    each is spread over parameters."""
    for each in call.args:
        if not isinstance(each, (ast.Constant, ast.JoinedStr)) and _speaks(each):
            yield each.value if isinstance(each, ast.Starred) else each, False
    for keyword in call.keywords:
        if isinstance(keyword.value, (ast.Constant, ast.JoinedStr)):
            continue
        if keyword.arg is None or SPEAKS.search(keyword.arg) or _speaks(keyword.value):
            yield keyword.value, keyword.arg is None


def _speaks(value: ast.expr) -> bool:
    return any(
        SPEAKS.search(node.id if isinstance(node, ast.Name) else node.attr)
        for node in ast.walk(value)
        if isinstance(node, (ast.Name, ast.Attribute))
    )


def _stranger(call: ast.Call, module: Module, study: Study) -> str:
    names = study.external(call.func, module)
    if any(map(fsdp1.canonical, names)) or call in study.constructors:
        return ""
    outside = (n for n in sorted(names) if n.partition(".")[0] not in OWN)
    return next(outside, "")


def _met(value: ast.expr, module: Module, study: Study) -> Iterator[ast.AST]:
    """The mentions of members in what an expression may be, or takes that from: a table that a
    lookup is in, a list that ``next`` goes through."""
    places = {value: module} | _made(value, module, study)
    for place, where in list(places.items()):
        for node in _given_by(place, where):
            if isinstance(node, (ast.Name, ast.Attribute)) and not study.external(node, where):
                places |= _made(node, where, study)
    for place, where in places.items():
        for node in _given_by(place, where):
            if _is_member(node, where, study):
                yield node


def _given_by(node: ast.AST, module: Module) -> Iterator[ast.AST]:
    """The parts of an expression that it may give: no tests, and no arguments of a function but of
    one that gives what it takes, as ``next`` and ``dict`` do, and lookups their default."""
    yield node
    parts: Iterator[ast.AST] = ast.iter_child_nodes(node)
    match node:
        case ast.Compare() | ast.Lambda():
            return
        case ast.Attribute(attr=taken) if taken in PARTS:
            return
        case ast.IfExp():
            parts = iter((node.body, node.orelse))
        case ast.Call(func=ast.Attribute(attr="get" | "pop" | "setdefault")):
            pass
        case ast.Call() if not _is_builtin(node, module):
            return
    for part in parts:
        yield from _given_by(part, module)


def _is_builtin(call: ast.Call, module: Module) -> bool:
    function = call.func
    return (
        isinstance(function, ast.Name)
        and hasattr(builtins, function.id)
        and module.table.within[function].lookup(function.id) is None
    )


def _made(value: ast.expr, module: Module, study: Study) -> dict[ast.expr, Module]:
    values = study.values(value, module)
    return {v.node: v.module for v in values if isinstance(v.node, ast.expr)}


def _entries(module: Module, study: Study) -> Iterator[ast.AST]:
    """The members that are put into dictionaries of a file: what is spread out of sight may be
    one of these."""
    for node in ast.walk(module.source.tree):
        value: ast.expr | None = None
        match node:
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(key)))]):
                value = node.value
            case ast.Call(
                func=ast.Attribute(attr="setdefault"), args=[ast.Constant(value=str(key)), given]
            ):
                value = given
            case ast.Call(func=ast.Attribute(attr="update"), keywords=[_, *_]):
                spoken = (k for k in node.keywords if k.arg and SPEAKS.search(k.arg))
                given_by = next(spoken, None)
                if given_by is None:
                    continue
                key, value = str(given_by.arg), given_by.value
        if value is not None and SPEAKS.search(key):
            yield from (each for each in ast.walk(value) if _is_member(each, module, study))


def _is_member(node: ast.AST, module: Module, study: Study) -> bool:
    if isinstance(node, ast.Call):
        return any(fsdp1.canonical(n) == OBJECT for n in study.external(node.func, module))
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    names = {fsdp1.canonical(name) or "" for name in study.external(node, module)}
    return any(name.partition(".")[0] in ENUMS for name in names)
