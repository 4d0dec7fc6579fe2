"""Tests of names that FSDP1's wrappers had a part in.

``named_modules()`` of an FSDP1 model, and outside of ``summon_full_params`` ``named_parameters()``
and ``named_buffers()``, gave ``_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.weight`` where
FSDP2 gives ``layers.0.weight``: a test of how a name begins, or what it equals, has another answer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.parameters import parameter_loops, parameter_owners
from fsdp_migrate.families.wrapping import gathered, own_names
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

CONSTRUCT = Construct.parse("prefixed name")
METHODS = frozenset({"named_parameters", "named_buffers", "named_modules"})
INSIDE = frozenset({"module", "_fsdp_wrapped_module"})  # what the wrapper around all is off for
PARTS = ("_fsdp_wrapped_module", "_fpw_module")
OWN = ("fsdp", "fpw")  # words of FSDP1's that hardly anything else has in its name
ANCHORED = frozenset({"match", "fullmatch", "fnmatch", "fnmatchcase"})
SEARCHING = frozenset({"search", "findall", "finditer", "sub"})
LISTING = frozenset({"list", "tuple", "dict", "sorted"})
# Between a number and what follows it in a name lies the wrapper of a unit, as policies make them.
ACROSS_UNITS = re.compile(r"(^|\.)\d+\.\w")
# The same in a regular expression, or what only a beginning can match.
PATTERN_ACROSS = re.compile(r"^\(?(\^|\\A)|(\d|\\d\+?|\[0-9\]\+?|\.[*+])\)?\\?\.[\w(\[]")
FUNCTIONS_DEEP = 2


def find_prefixed_names(study: Study, module: Module) -> Iterator[Site]:
    """Sites for loops over names that tell them apart by what FSDP1 put into them."""
    if not module.mentions(*METHODS):
        return
    found: set[ast.AST] = set()
    for call in module.table.calls_by_name.of(METHODS):
        method = call.func
        if not isinstance(method, ast.Attribute):
            continue
        owner = method.value
        if isinstance(owner, ast.Attribute) and owner.attr in INSIDE:
            continue
        tests = Tests(study, module, _like(owner, module))
        wholes = [
            whole for name, region, whole in _loops(call, module) if tests.any_in(name, region)
        ]
        wholes += _handed_to_tests(call, study, module)
        if (
            not wholes
            or _is_cleaned(call, module)
            or own_names.wrapped_by_now(owner, module, study)  # as of model.module
            or not parameter_owners.sharded(owner, module, study)
        ):
            continue
        flat = method.attr == "named_parameters" and parameter_owners.is_flat(owner, module, study)
        modules = method.attr == "named_modules"  # which are not plain in summon_full_params either
        if flat or (not modules and gathered.is_gathered(call, study, module)):
            continue
        for whole in wholes:
            if whole not in found:
                found.add(whole)
                yield Site(CONSTRUCT, module, whole, whole, owner)


def _handed_to_tests(call: ast.Call, study: Study, module: Module) -> Iterator[ast.expr]:
    """The calls of functions that are given the names of a call, and test them in a loop:
    ``pick(model.named_parameters())``."""
    for each in _listed(call, module):
        given = _in_a_list(each, module)
        around = module.table.parents[given]
        around = module.table.parents[around] if isinstance(around, ast.keyword) else around
        if not isinstance(around, ast.Call) or around.func is given:
            continue
        for function, where, name in _taken_by(around, given, study, module):
            tests = Tests(study, where, frozenset(), FUNCTIONS_DEEP - 1)
            uses = (n for n in where.table.names_by_id.named(name) if not _is_cleaned(n, where))
            inside = (n for n in uses if enclosing_function(where, n) is function)
            loops = (
                loop
                for use in inside
                for each in (use, *_items(use, where))
                for loop in _loops_over(each, where)
            )
            if any(tests.any_in(*loop[:2]) for loop in loops):
                yield around


def _taken_by(
    call: ast.Call, given: ast.expr, study: Study, module: Module
) -> Iterator[tuple[ast.AST, Module, str]]:
    """The functions of the project that a call runs, and what they call an argument of it."""
    for value in study.values(call.func, module):
        if not isinstance(value, Function) or isinstance(value.node, ast.Lambda):
            continue
        names = [a.arg for a in (*value.node.args.posonlyargs, *value.node.args.args)]
        if isinstance(call.func, ast.Attribute) and value.owner is not None:
            names = names[1:]
        if given in call.args:
            names = names[call.args.index(given) :][:1]
        else:
            names = [k.arg for k in call.keywords if k.value is given and k.arg]
        yield from ((value.node, value.module, name) for name in names)


Loop = tuple[str, Sequence[ast.AST], ast.expr | ast.stmt]


def _loops(call: ast.Call, module: Module) -> Iterator[Loop]:
    """The loops over the names that a call gives."""
    for iterated in _listed(call, module):
        yield from _loops_over(iterated, module)


def _loops_over(iterated: ast.expr, module: Module) -> Iterator[Loop]:
    loop = parameter_loops.loop_over(iterated, module)
    if loop is None:
        return
    target, region, whole = loop
    around = module.table.parents[iterated]
    match around, target:
        case ast.Call(func=ast.Name(id="zip"), args=given), ast.Tuple(elts=targets):
            if iterated in given and len(given) == len(targets):  # zip(named, others)
                target = targets[given.index(iterated)]
    if isinstance(target, ast.Tuple) and getattr(around, "func", None) is not None:
        counted = isinstance(around, ast.Call) and getattr(around.func, "id", "") == "enumerate"
        target = target.elts[1] if counted and len(target.elts) == 2 else target
    name = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else None
    if isinstance(name, ast.Name):
        yield name.id, region, whole


def _listed(call: ast.Call, module: Module) -> Iterator[ast.expr]:
    """A call of ``named_parameters``, and the uses of the name that its result is given."""
    table = module.table
    yield call
    kept = _in_a_list(call, module)
    parent = table.parents[kept]
    yield from _items(kept, module)
    if not isinstance(parent, ast.Assign) or parent.value is not kept:
        return
    names = {target.id for target in parent.targets if isinstance(target, ast.Name)}
    scope = table.scope_of(call)
    for name in table.names:
        if name.id in names and isinstance(name.ctx, ast.Load):
            owner = table.within[name].lookup(name.id)
            if owner is scope or table.within[name] is scope:
                yield name
                yield from _items(name, module)


def _in_a_list(node: ast.expr, module: Module) -> ast.expr:
    """``list(named)`` and ``dict(named)`` around an expression, if it stands in one."""
    parent = module.table.parents[node]
    if isinstance(parent, ast.Call) and getattr(parent.func, "id", "") in LISTING:
        return _in_a_list(parent, module)
    return node


def _items(node: ast.expr, module: Module) -> Iterator[ast.expr]:
    """``node.items()``"""
    method = module.table.parents[node]
    if isinstance(method, ast.Attribute) and method.attr == "items":
        call = module.table.parents[method]
        if isinstance(call, ast.Call) and call.func is method:
            yield call


def _like(model: ast.expr, module: Module) -> frozenset[str]:
    """The variables that are made from a model: their parts have the same names as its own."""
    table = module.table
    written = ast.unparse(model)
    found: set[str] = set()
    for name in table.names:
        given = table.parents[name]
        if not isinstance(given, ast.Assign) or name not in given.targets:
            continue
        if table.within[name] is table.scope_of(model):
            kind = type(model)
            parts = [node for node in walk(given.value) if isinstance(node, kind)]
            if any(ast.unparse(part) == written for part in parts):
                found.add(name.id)
    return frozenset(found)


@dataclass(frozen=True)
class Tests:
    """Tests of names whose answer changes when FSDP1's parts of the names are gone."""

    study: Study
    module: Module
    like: frozenset[str]  # variables that are made from the model
    depth: int = FUNCTIONS_DEEP

    def any_in(self, name: str, region: Sequence[ast.AST]) -> bool:
        tested = False
        split = {name_of for part in region for name_of in _split_into(part, name)}
        for part in region:
            for node in walk(part):
                stored = _is(node, name) and isinstance(node.ctx, ast.Store)
                if stored and isinstance(part, ast.stmt):
                    return False  # made another name before it is looked at
                tested = tested or self.is_one(node, name, split)
        return tested

    def is_one(self, node: ast.AST, name: str, split: set[str]) -> bool:
        if isinstance(node, ast.Compare):
            return _is_comparison(node, name, self.like)
        if isinstance(node, ast.Subscript):  # name.split(".")[0]
            method = node.value.func if isinstance(node.value, ast.Call) else None
            parted = isinstance(node.value, ast.Name) and node.value.id in split
            last = isinstance(node.slice, ast.UnaryOp)
            return (_of(method, name) == "split" or parted) and not last
        if not isinstance(node, ast.Call):
            return False
        if _of(node.func, name) == "startswith":
            return True
        if _of(node.func, name) == "endswith":
            return any(map(_is_across, node.args))
        if not any(_is(argument, name) for argument in node.args):
            return False
        called = last_name(node.func)
        if called in SEARCHING:
            return self.is_search(node)
        return called in ANCHORED or self.is_in_function(node, name)

    def is_search(self, call: ast.Call) -> bool:
        """Whether a regular expression looks at the beginning of a name, or across a unit."""
        patterns = [call.args[0]]
        if isinstance(call.func, ast.Attribute):  # pattern.search(name)
            compiled = self.study.values(call.func.value, self.module)
            made = [v.node for v in compiled if isinstance(v.node, ast.Call)]
            patterns += [node.args[0] for node in made if node.args]
        for pattern in patterns:
            flag = self.study.literal(pattern, self.module)
            if flag is not None and PATTERN_ACROSS.search(str(flag.value)):
                return True
        return False

    def is_in_function(self, call: ast.Call, name: str) -> bool:
        """Whether a function of the project that a name is given to tests it."""
        if not self.depth:
            return False
        for value in self.study.values(call.func, self.module):
            if not isinstance(value, Function) or isinstance(value.node, ast.Lambda):
                continue
            arguments = value.node.args
            positional = [*arguments.posonlyargs, *arguments.args]
            if isinstance(call.func, ast.Attribute) and value.owner is not None:
                positional = positional[1:]
            inside = Tests(self.study, value.module, frozenset(), self.depth - 1)
            for given, parameter in zip(call.args, positional, strict=False):
                if _is(given, name) and inside.any_in(parameter.arg, value.node.body):
                    return True
        return False


def _split_into(part: ast.AST, name: str) -> Iterator[str]:
    """The variables that the parts of a name are assigned to."""
    for node in walk(part):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if _of(node.value.func, name) == "split":
            yield from (t.id for t in node.targets if isinstance(t, ast.Name))


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
    """Whether a text contains a place in names where FSDP1 had put its part, ``layers.0.attn``, or
    is of that part: ``fsdp``."""
    if not isinstance(text, ast.Constant) or not isinstance(text.value, str):
        return False
    of_part = any(word in text.value for word in OWN) and any(text.value in part for part in PARTS)
    return of_part or ACROSS_UNITS.search(text.value) is not None


def _is_cleaned(node: ast.expr, module: Module) -> bool:
    """Whether a function around the loop takes FSDP1's part out of names itself."""
    around: list[ast.AST | None] = [
        parent for parent in module.table.ancestors(node) if isinstance(parent, FUNCTIONS)
    ]
    return module.mentions("clean_tensor_name") or any(
        isinstance(text.value, str)
        and any(part in text.value for part in PARTS)
        and enclosing_function(module, text) in (around or [None])
        for text in module.table.strings
    )
