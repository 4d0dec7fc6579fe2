"""Which ``model.parameters()`` the elements of a list, a dictionary or a generator come from."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import TypeGuard

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Generated, Value
from fsdp_migrate.families.parameters.elements import parameter_names, variable_of
from fsdp_migrate.families.parameters.parameter_loops import AROUND, METHODS
from fsdp_migrate.families.training_loop import applied_functions
from fsdp_migrate.families.training_loop.listed_parts import PARTS
from fsdp_migrate.families.training_loop.sharded_alike import ELEMENTWISE, reduced_parts
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

MEMBERS = "params"
CONTAINERS = (ast.List, ast.Set, ast.Dict, ast.Call)  # ``dict()`` among them
NESTED = 8  # lists made of lists of parameters
ITEMS = frozenset({"items", "values"})  # of a dictionary of parameters by name
COPYING = frozenset({"copy", "deepcopy"})
FLATTENING = frozenset({"chain", "from_iterable", "sum"})  # ``sum(lists, [])``

Held = tuple[ast.Attribute | ast.Subscript, Module]
"""``model.parameters``, which is called, or ``group["params"]``."""


def parameters_in(
    node: ast.expr, study: Study, module: Module, depth: int = NESTED
) -> tuple[Held, ...]:
    """Every ``model.parameters`` or ``group["params"]`` whose elements are in a list."""
    known = study.cache(_known)
    if (node, depth) not in known:
        found = _parameters_in(node, study, module, depth)
        known[node, depth] = tuple(dict.fromkeys(found))
    return known[node, depth]


def _known(
    study: Study,
) -> dict[tuple[ast.expr, int], tuple[Held, ...]]:
    return {}


def _parameters_in(node: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    if isinstance(node, ast.Call):
        known = _in_call(node, study, module, depth)
        if known is not None:
            yield from known
            return
        if isinstance(node.func, ast.Name) and depth:
            yield from _of_method(node.func, study, module)
    inner: list[ast.expr] = []
    match node:
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
            names = {n for g in node.generators for n in names_in(g.target)}
            parts = node.elt.elts if isinstance(node.elt, ast.Tuple) else [node.elt]
            held = any(reduced_parts(part, names) for part in parts)
            if held or isinstance(node.elt, ast.Dict):
                inner = [g.iter for g in node.generators]
        case ast.DictComp():
            names = {n for g in node.generators for n in names_in(g.target)}
            if reduced_parts(node.value, names):
                inner = [g.iter for g in node.generators]
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=[]) if attr in ITEMS:
            inner = [owner]
            if depth:
                yield from _filled_items(owner, study, module, depth - 1)
        case ast.List() | ast.Tuple() | ast.Set():
            inner = [e.value if isinstance(e, ast.Starred) else e for e in node.elts]
        case ast.Dict() | ast.BoolOp():
            inner = list(node.values)
        case ast.NamedExpr(value=named):
            inner = [named]
        case ast.IfExp(body=body, orelse=orelse):
            inner = [body, orelse]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            inner = [left, right]
        case ast.Subscript(slice=ast.Constant(value="params")):
            yield node, module
            yield from _of_groups(node.value, study, module, depth)
        case ast.Attribute(attr="_parameters"):
            yield node, module
        case ast.Name() | ast.Attribute() | ast.Call() | ast.Subscript() if depth:
            yield from _of_values(node, study, module, depth)
    for each in inner:
        yield from parameters_in(each, study, module, depth)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
            yield from _one(each, module, study)


def _of_values(node: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of the lists that an expression may be, with what is added."""
    for value in study.values(node, module):
        if value.node is not node and isinstance(value.node, ast.expr):
            yield from parameters_in(value.node, study, value.module, depth - 1)
        if isinstance(value.node, CONTAINERS):
            yield from _filled(value, study, depth - 1)
            for named in _names_of(value):
                for added in _extensions(named, study, value.module):
                    yield from parameters_in(added, study, value.module, depth - 1)
        if isinstance(value, Generated):
            yield from _yielded(value, study, depth - 1)
    for added in _extensions(node, study, module):
        yield from parameters_in(added, study, module, depth - 1)
    if isinstance(node, ast.Name):
        for lists in _gone_over(node, study, module):
            if _with_items(lists) is not None:
                yield from parameters_in(lists, study, module, depth - 1)
            else:
                yield from _filled_items(lists, study, module, depth - 1)
                yield from _in_lists(lists, study, module, depth - 1)
    if _is_item(node):
        yield from _in_lists(node.value, study, module, depth - 1)
        for value in study.values(node.value, module):
            yield from _filled(value, study, depth - 1)
        yield from _filled_items(node.value, study, module, depth - 1)


def _in_lists(container: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of the lists in one that a comprehension makes: ``[deepcopy(params)
    for _ in rates]``."""
    for value in study.values(container, module):
        if isinstance(value.node, ast.ListComp):
            yield from parameters_in(value.node.elt, study, value.module, depth)


def _of_groups(group: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of the parameters of groups that are written out: ``{"params":
    list(model.parameters())}``."""
    if not depth:
        return
    groups = [(value.node, value.module) for value in study.values(group, module)]
    for lists in _gone_over(group, study, module) if isinstance(group, ast.Name) else ():
        yield from _filled_items(_with_items(lists) or lists, study, module, depth - 1)
        for value in study.values(lists, module):
            groups += study.tracer.additions(value)
    for written, where in groups:
        for key, given in _entries(written):
            if isinstance(key, ast.Constant) and key.value == MEMBERS:
                yield from parameters_in(given, study, where, depth - 1)


def _entries(node: ast.AST) -> Iterator[tuple[ast.expr | None, ast.expr]]:
    return zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else iter(())


def _in_call(call: ast.Call, study: Study, module: Module, depth: int) -> Iterator[Held] | None:
    """As :func:`parameters_in`, of calls of which it is known what they give; None of others."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
        return iter([(call.func, module)])
    if getattr(call.func, "id", "") in {*AROUND, "dict"} or _gives_parts(call, study, module):
        return (held for a in call.args for held in parameters_in(a, study, module, depth))
    if last_name(call.func) in COPYING and call.args:
        return iter(parameters_in(call.args[0], study, module, depth))
    if last_name(call.func) in FLATTENING:
        return (held for a in call.args for held in _flattened(a, study, module, depth))
    asked = applied_functions.asked_of_each(call, METHODS)
    if asked is None:
        return None
    # It is in no file, and stands for ``parameters`` of each of them.
    return iter([(ast.copy_location(ast.Attribute(*asked, ast.Load()), call), module)])


def _gives_parts(call: ast.Call, study: Study, module: Module) -> bool:
    """Whether ``map`` gives parameters, or what has all of their elements: ``map(lambda p: p.grad,
    model.parameters())``, ``map(attrgetter("grad"), model.parameters())``."""
    match call:
        case ast.Call(func=ast.Name(id=applied_functions.MAP), args=[ast.Name(id=made), _]):
            return made in AROUND  # map(list, lists)
        case ast.Call(func=ast.Name(id=applied_functions.MAP), args=[ast.Lambda() as each, _]):
            names = {a.arg for a in each.args.args[:1]}
            return bool(reduced_parts(each.body, names))
        case ast.Call(func=ast.Name(id=applied_functions.MAP), args=[function, _]):
            name, is_attribute = applied_functions.named(function, study, module)
            return name in (PARTS if is_attribute else ELEMENTWISE)
    return False


def _flattened(node: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of lists in a list: ``*lists``, ``g["params"] for g in groups``."""
    inner = node.value if isinstance(node, ast.Starred) else node
    if isinstance(inner, (ast.ListComp, ast.GeneratorExp)):
        inner = inner.elt
    yield from parameters_in(inner, study, module, depth)


def _names_of(container: Value) -> Iterator[ast.expr]:
    """The variables that a list is given to where it is made."""
    match container.module.table.parents.get(container.node):
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
            yield target


def _extensions(node: ast.expr, study: Study, module: Module) -> Iterator[ast.expr]:
    """What the function around a variable adds to its list: ``params += group["params"]``,
    ``params.extend(group["params"])``; to that of ``self.params``, the file."""
    path = access_path(node)
    here = enclosing_function(module, node)
    for owner, added in study.cache(_extended).get((module, path or ""), ()):
        if isinstance(owner, ast.Attribute) or enclosing_function(module, owner) is here:
            yield added


def _extended(study: Study) -> dict[tuple[Module, str], list[tuple[ast.expr, ast.expr]]]:
    """Everything of the project that a list is extended by, by the path to the list."""
    found: dict[tuple[Module, str], list[tuple[ast.expr, ast.expr]]] = defaultdict(list)
    for module in study.project.modules:
        pairs: list[tuple[ast.expr, ast.expr]] = [
            (call.func.value, call.args[0])
            for call in module.table.calls_by_name.named("extend")
            if isinstance(call.func, ast.Attribute) and call.args
        ]
        stored: list[ast.Name | ast.Attribute]
        stored = [*module.table.names, *module.table.stored_attributes]
        for target in (each for each in stored if isinstance(each.ctx, ast.Store)):
            match module.table.parents[target]:
                case ast.AugAssign(op=ast.Add(), value=value):
                    pairs.append((target, value))
        for owner, added in pairs:
            found[module, access_path(owner) or ""].append((owner, added))
    return found


def _filled_items(container: ast.expr, study: Study, module: Module, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of what the lists in a dictionary are filled with, whichever:
    ``groups[key].append(p)``, ``groups.setdefault(key, []).extend(part.parameters())``."""
    path = access_path(container)
    added = study.cache(_into_items).get((module, path), ()) if path is not None else ()
    for element, is_list in added:
        if is_list:
            yield from parameters_in(element, study, module, depth)
        else:
            yield from _looped(element, module, study, depth)
            yield from _one(element, module, study)


def _into_items(
    study: Study,
) -> dict[tuple[Module, str | None], list[tuple[ast.expr, bool]]]:
    """What is added to the lists in dictionaries, by the path to each, and whether it is a list."""
    found: dict[tuple[Module, str | None], list[tuple[ast.expr, bool]]] = defaultdict(list)
    for module in study.project.modules:
        for call in module.table.calls_by_name.of(("append", "extend")):
            match call:
                case ast.Call(func=ast.Attribute(value=item, attr=attr), args=[added]):
                    owner = _holder(item)
                    if owner is not item:
                        found[module, access_path(owner)].append((added, attr == "extend"))
        for item in module.table.subscripts:
            match module.table.parents[item]:
                case ast.AugAssign(target=target, op=ast.Add(), value=added) if target is item:
                    found[module, access_path(item.value)].append((added, True))
    return found


def _holder(item: ast.expr) -> ast.expr:
    """``groups`` of ``groups[key]``, ``groups[i]["params"]`` and ``groups.setdefault(key, [])``."""
    match item:
        case (
            ast.Subscript(value=owner)
            | ast.Call(func=ast.Attribute(value=owner, attr="setdefault"))
        ):
            return _holder(owner)
    return item


def _gone_over(name: ast.Name, study: Study, module: Module) -> Iterator[ast.expr]:
    """``groups.values()`` of ``for params in groups.values()``, and ``groups`` of ``for params in
    groups``, for ``params``."""
    for definition in study.defined_by(name, module):
        given = definition.value
        if definition.kind is not Kind.ELEMENT or given is None:
            continue
        if _with_items(given) is not None or isinstance(given, (ast.Name, ast.Attribute)):
            yield given


def _with_items(node: ast.expr) -> ast.expr | None:
    """The dictionary whose ``values()`` or ``items()`` an expression is."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr), args=[]) if attr in ITEMS:
            return owner
    return None


def _is_item(node: ast.expr) -> TypeGuard[ast.Subscript]:
    return isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice)


def _of_method(function: ast.Name, study: Study, module: Module) -> Iterator[Held]:
    """The methods that a called variable may be: ``def groups(named): for n, p in named(): ...``
    of ``groups(model.named_parameters)``."""
    if function.id in module.table.module.bindings:
        return  # as nearly always
    for value in study.values(function, module):
        if isinstance(value.node, ast.Attribute) and value.node.attr in METHODS:
            yield value.node, value.module


def _filled(container: Value, study: Study, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of what is added to a container: ``found.append(p)`` in a loop,
    ``self.params[i] = group["params"]``."""
    for element, module in study.tracer.additions(container):
        yield from parameters_in(element, study, module, depth)
        yield from _looped(element, module, study, depth)
        yield from _one(element, module, study)


def _looped(element: ast.expr, module: Module, study: Study, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of what a loop gives one by one: ``found.append(p)``."""
    parts = reduced_parts(element, names_in(element))
    looped = [n for part in parts for n in walk(part) if isinstance(n, ast.Name)]
    for definition in (d for name in looped for d in study.defined_by(name, module)):
        if definition.kind is Kind.ELEMENT and definition.value is not None:
            yield from parameters_in(definition.value, study, module, depth)


def _one(element: ast.expr, module: Module, study: Study) -> Iterator[Held]:
    """A single parameter that is put into a list: ``weights[name] = child.weight``."""
    one = variable_of(element)
    if isinstance(one, ast.Attribute) and one.attr in study.cache(parameter_names):
        owner = one.value
        while isinstance(owner, (ast.Attribute, ast.Subscript)):
            owner = owner.value
        if not is_self(owner, module):  # whole where a model's own code runs
            yield one, module


def _yielded(generated: Generated, study: Study, depth: int) -> Iterator[Held]:
    """As :func:`parameters_in`, of what a generator function yields."""
    module = generated.function.module
    for each in generated.yields:
        if isinstance(each, ast.YieldFrom):
            yield from parameters_in(each.value, study, module, depth)
        elif each.value is not None:
            parts = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
            for part in parts:
                yield from _looped(part, module, study, depth)
