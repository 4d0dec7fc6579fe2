"""Tests of names that FSDP1's wrappers had a part in.

``named_modules()`` of an FSDP1 model, and outside of ``summon_full_params`` ``named_parameters()``
and ``named_buffers()``, gave ``_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.weight`` where
FSDP2 gives ``layers.0.weight``: a test of how a name begins, or what it equals, has another answer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TypeGuard

from fsdp_migrate.around import parameters
from fsdp_migrate.names import FUNCTIONS
from fsdp_migrate.sites import Site, enclosing_function
from fsdp_migrate.study import Study
from fsdp_migrate.trace.project import Module

CONSTRUCT = "prefixed name"
METHODS = frozenset({"named_parameters", "named_buffers", "named_modules"})
INSIDE = frozenset({"module", "_fsdp_wrapped_module"})  # what the wrapper around all is off for
PARTS = ("_fsdp_wrapped_module", "_fpw_module")
ANCHORED = frozenset({"match", "fullmatch", "fnmatch", "fnmatchcase"})
# Between a number and what follows it in a name lies the wrapper of a unit, as policies make them.
ACROSS_UNITS = re.compile(r"(^|\.)\d+\.\w")


def find(study: Study, module: Module) -> Iterator[Site]:
    """Loops over names of models that tell names apart by what FSDP1 put into them."""
    if not module.mentions(*METHODS):
        return
    found: set[ast.AST] = set()
    for call in module.table.calls:
        method = call.func
        if not isinstance(method, ast.Attribute) or method.attr not in METHODS:
            continue
        owner = method.value
        if isinstance(owner, ast.Attribute) and owner.attr in INSIDE:
            continue
        loop = parameters.loop_over(call, module)
        if loop is None or loop[2] in found:
            continue
        target, region, whole = loop
        name = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
        if not isinstance(name, ast.Name) or not _tested(name.id, region, _like(owner, module)):
            continue
        if _is_cleaned(call, module) or not study.traced(owner, module):
            continue
        flat = method.attr == "named_parameters" and parameters.is_flat(owner, module, study)
        modules = method.attr == "named_modules"  # which are not plain in summon_full_params either
        if flat or (not modules and parameters.is_gathered(call, study, module)):
            continue
        found.add(whole)
        yield Site(CONSTRUCT, module, whole, whole, owner)


def _like(model: ast.expr, module: Module) -> frozenset[str]:
    """The variables that are made from a model where it is used: their names are as its own."""
    table = module.table
    written = ast.unparse(model)
    function = enclosing_function(module, model)
    found: set[str] = set()
    for name in table.names:
        given = table.parents[name]
        if not isinstance(given, ast.Assign) or name not in given.targets:
            continue
        if enclosing_function(module, name) is function:
            parts = [n for n in ast.walk(given.value) if isinstance(n, (ast.Name, ast.Attribute))]
            if any(ast.unparse(part) == written for part in parts):
                found.add(name.id)
    return frozenset(found)


def _tested(name: str, region: Sequence[ast.AST], like: frozenset[str]) -> bool:
    tested = False
    for part in region:
        for node in ast.walk(part):
            if isinstance(part, ast.stmt) and _is(node, name) and isinstance(node.ctx, ast.Store):
                return False  # made another name before it is looked at
            tested |= _is_test(node, name, like)
    return tested


def _is_test(node: ast.AST, name: str, like: frozenset[str]) -> bool:
    """Whether a node's answer depends on more of a name than FSDP1 left together."""
    if isinstance(node, ast.Compare):
        return _is_comparison(node, name, like)
    if isinstance(node, ast.Subscript):  # name.split(".")[0]
        method = node.value.func if isinstance(node.value, ast.Call) else None
        last = isinstance(node.slice, ast.UnaryOp)
        return _of(method, name) == "split" and not last
    if not isinstance(node, ast.Call):
        return False
    if _of(node.func, name) == "startswith":
        return True
    if _of(node.func, name) == "endswith":
        return any(map(_is_across, node.args))
    called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    called = node.func.id if isinstance(node.func, ast.Name) else called
    return called in ANCHORED and any(_is(argument, name) for argument in node.args)


def _is_comparison(node: ast.Compare, name: str, like: frozenset[str]) -> bool:
    sides = (node.left, *node.comparators)
    for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
        if isinstance(operator, (ast.Eq, ast.NotEq)) and (_is(left, name) or _is(right, name)):
            return not any(isinstance(s, ast.Constant) and s.value == "" for s in (left, right))
        if isinstance(operator, (ast.In, ast.NotIn)):
            if _is(left, name):
                return not (isinstance(right, ast.Name) and right.id in like)
            if _is(right, name) and _is_across(left):
                return True
    return False


def _is(node: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and node.id == name


def _of(method: ast.expr | None, name: str) -> str:
    if isinstance(method, ast.Attribute) and _is(method.value, name):
        return method.attr
    return ""


def _is_across(text: ast.expr) -> bool:
    """Whether a text can only be in the name of something in a unit as it is without wrappers."""
    return (
        isinstance(text, ast.Constant)
        and isinstance(text.value, str)
        and ACROSS_UNITS.search(text.value) is not None
    )


def _is_cleaned(node: ast.expr, module: Module) -> bool:
    """Whether a function around knows what FSDP1 puts into names."""
    around: list[ast.AST | None] = [
        parent for parent in module.table.ancestors(node) if isinstance(parent, FUNCTIONS)
    ]
    return module.mentions("clean_tensor_name") or any(
        isinstance(text.value, str)
        and any(part in text.value for part in PARTS)
        and enclosing_function(module, text) in (around or [None])
        for text in module.table.strings
    )
