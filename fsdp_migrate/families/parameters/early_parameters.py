"""Parameters that are kept in a list before their model is wrapped, and used after that.

As with an optimizer that is built before, the list holds the old parameters, and what is done to
them does nothing to the model, without an error.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Class, Made, Value
from fsdp_migrate.families.parameters import attributes
from fsdp_migrate.families.training_loop.applied_functions import MAP, asked_of_each
from fsdp_migrate.families.training_loop.early_optimizers import (
    OPTIMIZER_NAME,
    PARAMETER_METHODS,
    is_optimizer,
    named_like_an_optimizer,
    stored_paths,
)
from fsdp_migrate.families.training_loop.later_wraps import (
    function_scope,
    later_wraps,
    wrapping_constructors,
)
from fsdp_migrate.families.wrapping import model_contents, stored_models
from fsdp_migrate.families.wrapping.computing_methods import LEAVES
from fsdp_migrate.families.wrapping.enclosing_models import class_of
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name, names_in
from fsdp_migrate.syntax.scopes import Scope
from fsdp_migrate.syntax.trees import children, walk

CONSTRUCT = Construct.parse("early parameters")
IN_MODELS = Construct.parse("kept parameters")
COLLECTS = re.compile(r"param|group|decay|optim", re.I)
COUNTS = re.compile(r"count|num|size|print|log|sched|state", re.I)
HOLDERS = frozenset({"list", "tuple", "set", "dict", "filter", "sorted", "reversed", "chain"}) | {
    "from_iterable"
}
PLAIN_HOLDERS = frozenset({"argparse.Namespace", "types.SimpleNamespace"})
KEEPING = frozenset({"append", "extend", "add", "insert", "update", "setdefault"})


@dataclass(frozen=True, eq=False)
class EarlyParameters:
    """Parameters that a statement keeps for later, before ``wraps`` shard their model."""

    statement: ast.stmt
    names: frozenset[str]  # what they are kept in
    wraps: tuple[ast.Call, ...]
    passed_on: bool  # other statements before the last of ``wraps`` keep them too


def find_early_parameters(study: Study, module: Module) -> Iterator[Site]:
    """Sites for parameters that are kept before their model is wrapped, and used after that."""
    if not study.constructors:
        return
    table = module.table
    seen: set[ast.stmt] = set()
    calls = table.calls_by_name
    for call in calls.of([MAP, *(name for name in calls.names if may_collect(name))]):
        method = call.func
        if not may_collect(last_name(method)) and asked_of_each(call, PARAMETER_METHODS) is None:
            continue
        found = read_early_parameters(call, module, study)
        if found is not None and found.statement not in seen:
            seen.add(found.statement)
            yield Site(CONSTRUCT, module, call, call)
    for leaf in table.attributes_by_name.of(LEAVES):
        found = read_early_parameters(leaf, module, study)
        if found is not None and found.statement not in seen:
            seen.add(found.statement)
            yield Site(CONSTRUCT, module, leaf, leaf)


def may_collect(name: str) -> bool:
    """Whether a function's name says that it may give the parameters of a model."""
    return name in PARAMETER_METHODS or _collects(name)


def _collects(name: str) -> bool:
    """Whether a function's name says that it gives a list of parameters."""
    return COLLECTS.search(name) is not None and not COUNTS.search(name)


def find_kept_parameters(study: Study) -> Iterator[Site]:
    """Sites for lists of its own parameters that a class of an FSDP model keeps.

    They stand beside the model that is wrapped: the class may be in a file without FSDP1.
    """
    for constructor in study.constructors.values():
        if constructor.is_context or not constructor.has_module:
            continue
        if attributes.keeps_attributes(constructor, study) is None:
            continue
        contents = model_contents.contents(constructor.wrapped, constructor.module, study)
        for cls in contents.classes:
            if cls.module in study.project.modules and attributes_with_parameters(cls):
                wrapped = constructor.wrapped
                yield Site(IN_MODELS, constructor.module, wrapped, cls.node, constructor.call)


def attributes_with_parameters(cls: Class) -> list[str]:
    """The attributes in which a class keeps parameters, in a list or the like, and reads them.

    As an attribute alone (``self.weight = self.head.weight``) a parameter is registered twice, and
    both are sharded.
    """
    stored: dict[str, ast.Assign] = {}
    for node in walk(cls.node):
        match node:
            case ast.Assign(
                targets=[ast.Attribute(value=ast.Name(id="self"), attr=attr)], value=value
            ) if _is_of_own_parameters(value):
                stored[attr] = node
    return [
        attr
        for attr in stored
        if any(a.attr == attr and isinstance(a.ctx, ast.Load) for a in cls.module.table.attributes)
    ]


def _is_of_own_parameters(node: ast.expr) -> bool:
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return any(map(_is_own_parameter, parts))
        case ast.Dict(values=parts):
            return any(map(_is_own_parameter, parts))
        case ast.Call(func=ast.Name(id=name), args=[inner]) if name in HOLDERS:
            return _gives_own_parameters(inner)
        case (
            ast.ListComp(elt=element, generators=[loop])
            | ast.SetComp(elt=element, generators=[loop])
            | ast.DictComp(value=element, generators=[loop])
        ):
            names = names_in(loop.target)
            parts = element.elts if isinstance(element, ast.Tuple) else [element]
            whole = any(isinstance(p, ast.Name) and p.id in names for p in parts)
            return whole and _gives_own_parameters(loop.iter)
    return False


def _is_own_parameter(node: ast.expr) -> bool:
    """``self.head.weight``."""
    is_leaf = isinstance(node, ast.Attribute) and node.attr in LEAVES
    return is_leaf and (access_path(node) or "").startswith("self.")


def _gives_own_parameters(node: ast.expr) -> bool:
    """``self.parameters()``, ``self.head.named_parameters()``."""
    method = node.func if isinstance(node, ast.Call) else None
    if not isinstance(method, ast.Attribute) or method.attr not in PARAMETER_METHODS:
        return False
    path = access_path(method.value) or ""
    return path == "self" or path.startswith("self.")


def read_early_parameters(call: ast.expr, module: Module, study: Study) -> EarlyParameters | None:
    """The wrap that follows where parameters are collected, if they are used after it."""
    table = module.table
    method = call.func if isinstance(call, ast.Call) else None
    each = asked_of_each(call, PARAMETER_METHODS) if isinstance(call, ast.Call) else None
    given = given_arguments(call) if isinstance(call, ast.Call) else []
    given = given if each is None else [each[0]]
    asked, owner = each is not None, None
    if method is None:  # a parameter by itself: ``net.head.weight``
        asked, given = True, list(_above(call))
    elif isinstance(method, ast.Attribute) and method.attr in PARAMETER_METHODS:
        asked, given = True, [method.value]
    elif isinstance(method, ast.Attribute):  # the model's own: ``net.configure_optimizers()``
        owner = method.value
        given = [*given, owner]
    statement = table.statement(call)
    names = keeps_in(statement, call, module, study)
    if not names:
        return None
    scope = function_scope(call, module)
    order = module.flow(scope).order
    if statement not in order:
        return None
    if asked and any(
        is_optimizer(callee, study)
        for around in table.ancestors(call)
        if isinstance(around, ast.Call)
        for callee in study.values(around.func, module)
    ):
        return None  # an early optimizer
    makes_optimizer = method is not None and not asked and gives_optimizer(call, module, study)
    for model in given:
        wraps = [
            wrap
            for wrap in later_wraps(model, statement, module, study)
            if (makes_optimizer or _keeps_parameters(wrap, study, module))
            and (model is not owner or access_path(owner) in module.given_paths[wrap])
        ]
        if wraps:
            behind = table.statement(wraps[-1])
            held = _passed_on(names, statement, behind, scope, module)
            if _used_after(held, behind, statement, scope, module, optimizer=not asked):
                return EarlyParameters(statement, names, tuple(wraps), held != names)
    return None


def gives_optimizer(call: ast.expr, module: Module, study: Study) -> bool:
    """Whether a function or a method makes the optimizer, which is moved whatever FSDP1 kept."""
    return any(
        isinstance(v, Made) and v.callee is not None and is_optimizer(v.callee, study)
        for v in study.values(call, module)
    )


def _above(node: ast.expr) -> Iterator[ast.expr]:
    """``net.head`` and ``net`` of ``net.head.weight``."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
        yield node


def _keeps_parameters(wrap: ast.Call, study: Study, module: Module) -> bool:
    """Whether FSDP1 may keep the parameters of the model that a call wraps."""
    made = wrapping_constructors(wrap, module, study)
    return any(attributes.keeps_attributes(c, study) is not None for c in made)


def keeps_in(statement: ast.stmt, call: ast.expr, module: Module, study: Study) -> frozenset[str]:
    """The names under which a statement keeps the parameters that ``call`` gives."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if statement.value is None or not holds(statement.value, frozenset(), call):
            return frozenset()
        if isinstance(call, ast.Attribute):
            targets = [t for t in targets if not is_modules_own(t, module, study)]
        return frozenset(p for t in targets for p in stored_paths(t))
    if not isinstance(statement, ast.For) or call not in walk(statement.iter):
        return frozenset()
    variables = names_in(statement.target)
    found: set[str] = set()
    for part in statement.body:
        for node in walk(part):
            match node:
                case ast.Call(func=ast.Attribute(value=holder, attr=attr), args=given) if (
                    attr in KEEPING
                ):
                    kept = any(holds(g, frozenset(variables), None) for g in given)
                case ast.Assign(targets=[ast.Subscript(value=holder)], value=value):
                    kept = holds(value, frozenset(variables), None)
                case _:
                    continue
            if kept:
                found |= _outermost(holder)
    return frozenset(found - variables)


def is_modules_own(target: ast.expr, module: Module, study: Study) -> bool:
    """Whether something may be a parameter of a module: ``net.head.weight = net.embed.weight`` ties
    two of them, ``self.weight = net.head.weight`` of a trainer keeps one."""
    if not isinstance(target, ast.Attribute) or target.attr not in LEAVES:
        return False
    owner = target.value
    if is_self(owner, module):
        cls = class_of(owner, module)
        return cls is None or _makes_modules(cls, study)
    values = study.values(owner, module)
    return not values or any(_may_be_module(value, study) for value in values)


def _may_be_module(value: Value, study: Study) -> bool:
    if isinstance(value, Made) and isinstance(value.callee, Class):
        return _makes_modules(value.callee, study)
    return not isinstance(value, Made) or value.made_by not in PLAIN_HOLDERS


def _makes_modules(cls: Class, study: Study) -> bool:
    bases = study.tracer.external_bases(cls)
    return stored_models.is_module(cls, study) or any(b.endswith("Model") for b in bases)


def given_on(
    names: frozenset[str], function: ast.AST, module: Module, study: Study
) -> frozenset[str]:
    """``names``, and those that get the same in statements of a function: ``self.kept = kept``."""
    held = set(names)
    for statement in walk(function):
        if isinstance(statement, ast.Assign) and holds(statement.value, frozenset(held), None):
            targets = (t for t in statement.targets if not is_modules_own(t, module, study))
            held |= {path for target in targets for path in stored_paths(target)}
    return frozenset(held)


def _outermost(node: ast.expr) -> set[str]:
    """``decay`` and ``self.other`` of ``(decay if matrix else self.other)``."""
    path = access_path(node)
    if path is not None:
        return {path}
    parts = (
        [node.body, node.orelse]
        if isinstance(node, ast.IfExp)
        else [child for child in children(node) if isinstance(child, ast.expr)]
    )
    return {path for part in parts for path in _outermost(part)}


def holds(node: ast.expr | None, names: frozenset[str], call: ast.expr | None) -> bool:
    """Whether a value is, or contains, the result of ``call`` or one of some names."""
    match node:
        case ast.expr() if node is call:
            return True
        case ast.Name() | ast.Attribute():
            return access_path(node) in names
        case ast.Call(func=func, args=given):
            last = last_name(func)
            collects = COLLECTS.search(last) or OPTIMIZER_NAME.search(last)
            kept = last in HOLDERS or (collects and not COUNTS.search(last))
            return bool(kept) and any(holds(g, names, call) for g in given)
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return any(holds(p, names, call) for p in parts)
        case ast.Dict(values=parts):
            return any(holds(p, names, call) for p in parts)
        case ast.Starred(value=value) | ast.DictComp(generators=[], value=value):
            return holds(value, names, call)
        case ast.BinOp(left=left, right=right):
            return holds(left, names, call) or holds(right, names, call)
        case ast.ListComp(generators=loops) | ast.SetComp(generators=loops):
            result = node.elt
        case ast.GeneratorExp(generators=loops):
            result = node.elt
        case ast.DictComp(generators=loops):
            result = node.value
        case _:
            return False
    inner = set(names)
    for loop in loops:
        if holds(loop.iter, frozenset(inner), call):
            inner |= names_in(loop.target)
    named = loops[-1].target
    if isinstance(named, ast.Tuple) and "named_parameters" in ast.unparse(loops[-1].iter):
        inner -= names_in(named.elts[0])
    return holds(result, frozenset(inner), call)


def _passed_on(
    names: frozenset[str], first: ast.stmt, behind: ast.stmt, scope: Scope, module: Module
) -> frozenset[str]:
    """``names``, and the names that are given the same lists before the model is wrapped."""
    order = module.flow(scope).order
    held = set(names)
    between = [s for s in order if order[first] < order[s] < order[behind]]
    for statement in sorted(between, key=order.__getitem__):
        if isinstance(statement, ast.Assign) and holds(statement.value, frozenset(held), None):
            held |= {path for target in statement.targets for path in stored_paths(target)}
    return frozenset(held)


def _used_after(
    names: frozenset[str],
    behind: ast.stmt,
    first: ast.stmt,
    scope: Scope,
    module: Module,
    *,
    optimizer: bool,
) -> bool:
    """Whether something reads one of some names after the model is wrapped.

    With ``optimizer`` only an optimizer counts: what the names hold is a guess.
    """
    table, order = module.table, module.flow(scope).order
    nodes: list[ast.Name | ast.Attribute] = [*table.names, *table.attributes]
    for node in nodes:
        path = access_path(node)
        if path is None or path not in names or not isinstance(node.ctx, ast.Load):
            continue
        here = function_scope(node, module) is scope
        if isinstance(node, ast.Name) and table.within[node].lookup(node.id) is not scope:
            continue
        if here and order.get(table.statement(node), 1 << 30) <= order[behind]:
            continue
        reaching = definitions(node, module)
        later = all(order.get(d.node, 1 << 30) >= order[behind] for d in reaching)
        if isinstance(first, ast.Assign) and here and reaching and later:
            continue  # it was given another value by then
        calls = [p for p in table.ancestors(node) if isinstance(p, ast.Call)]
        if not optimizer or path.rpartition(".")[2].lower().startswith("opt"):
            return True
        if any(map(named_like_an_optimizer, calls)):
            return True
    return False
