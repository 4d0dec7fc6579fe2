"""Lists and dictionaries that the ``forward`` of a unit is given, and puts something into.

FSDP2 takes the inputs of a unit apart, to know when their gradients are there, and puts them
together again, so that ``seen.append(x)`` fills a copy that nobody sees. FSDP1 gave a unit the
caller's own. Measured on torch 2.13, on two ranks: of two blocks one was in the list under a
gradient, and none with mixed precision, which casts the inputs.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Display, Function, Made, Value
from fsdp_migrate.families.modules.dataclass_nodes import units_and_roots
from fsdp_migrate.families.wrapping import enclosing_models
from fsdp_migrate.families.wrapping.module_values import ModuleValues
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

CHANGED = Construct.parse("list that a unit fills")
FORWARD = "forward"
# What lists and dictionaries have, and no tensor.
FILLING = frozenset({"append", "extend", "insert", "setdefault", "popitem"})
# What tensors and other objects have as well: it must be a list or a dictionary by its looks.
ALSO_OTHERS = frozenset({"update", "pop", "clear", "add", "remove"})
CONTAINERS = frozenset(
    {"list", "dict", "set", "List", "Dict", "Set", "Any", "object", "MutableSequence", "Sequence"}
    | {"MutableMapping", "Mapping", "defaultdict", "OrderedDict", "deque"}
)
DEEPEST = 2  # functions that a forward hands it on to
Method = ast.FunctionDef | ast.AsyncFunctionDef


def find_changed_inputs(study: Study) -> Iterator[Site]:
    """A site for each place where a unit fills what it is given."""
    found: set[ast.AST] = set()
    for module, place in _places(study):
        if place not in found and module in study.project.modules:
            found.add(place)
            yield Site(CHANGED, module, place, place)


def models_of(site: Site, study: Study) -> frozenset[Constructor]:
    """The constructors of the models that have such a unit."""
    return frozenset(c for c in study.constructors.values() if site.node in _of(c, study))


def _places(study: Study) -> Iterator[tuple[Module, ast.expr]]:
    for constructor in study.constructors.values():
        yield from ((module, place) for place, module in _of(constructor, study).items())


def _of(constructor: Constructor, study: Study) -> dict[ast.expr, Module]:
    known = study.cache(_known)
    if constructor.node not in known:
        known[constructor.node] = {
            place: module
            for cls in _units(constructor, study)
            for place, module in _filled(cls, study)
        }
    return known[constructor.node]


def _known(study: Study) -> dict[ast.AST, dict[ast.expr, Module]]:
    return {}


def _units(constructor: Constructor, study: Study) -> Iterator[Class]:
    """The classes of units that are no root: FSDP1 made a copy of what a root is given as well."""
    for roots, parts in units_and_roots(constructor, study):
        yield from parts
        if roots and enclosing_models.role(constructor, study) is not enclosing_models.Role.ROOT:
            yield from roots


def _filled(cls: Class, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """The first place where the ``forward`` of a class fills what it is given: it says it for
    all."""
    for base in study.tracer.lineage(cls):
        for each in base.node.body:
            if isinstance(each, ast.FunctionDef) and each.name == FORWARD:
                places = (
                    place
                    for argument in _arguments(each)[1:]
                    for place in _in_function(argument, each, base.module, study, DEEPEST)
                )
                yield from itertools.islice(places, 1)
                return


def _arguments(function: Method) -> list[ast.arg]:
    """The parameters of a function, ``*args`` and ``**kwargs`` as well."""
    given = function.args
    rest = [each for each in (given.vararg, given.kwarg) if each is not None]
    return [*given.posonlyargs, *given.args, *given.kwonlyargs, *rest]


def _in_function(
    argument: ast.arg, function: Method, module: Module, study: Study, depth: int
) -> Iterator[tuple[ast.expr, Module]]:
    """Where a function puts something into what it is given, unless it gives it back."""
    table, inside = module.table, _inside(function, study)
    names = {argument.arg} | set(_named(inside.assignments, argument.arg))
    if argument.arg in inside.made_anew or names & inside.returned:
        return
    inner = set(_taken_out(inside.assignments, names)) - inside.returned
    is_rest = argument in (function.args.vararg, function.args.kwarg)
    for use in [n for n in inside.names if n.id in inner]:
        if _fills_inner(use, table.parents):
            yield use, module
    for use in [n for n in inside.names if n.id in names]:
        given: ast.expr = use
        if is_rest:  # args[0].append(x)
            taken = table.parents[use]
            if not isinstance(taken, ast.Subscript) or taken.value is not use:
                continue
            given = taken
        parent = table.parents[given]
        part = _part(given, table.parents)
        if part is not None and _fills_inner(part, table.parents):
            yield given, module
            continue
        if isinstance(parent, ast.keyword):
            parent = table.parents[parent]
        if _fills(given, parent, argument, module, study):
            yield given, module
        elif isinstance(parent, ast.Call) and given is not parent.func and depth:
            for value in study.values(parent.func, module):
                node = value.node
                if isinstance(value, Function) and isinstance(node, ast.FunctionDef):
                    yield from _handed(given, parent, value, study, depth - 1)


@dataclass(frozen=True, eq=False)
class _Inside:
    """What is asked of a function for each of its parameters."""

    names: list[ast.Name]
    assignments: list[ast.Assign | ast.For]
    returned: frozenset[str]  # the names in what it returns
    made_anew: frozenset[str]  # that get another value; ``seen += [x]`` is the list that it was


def _inside(function: Method, study: Study) -> _Inside:
    known = study.cache(_functions)
    if function not in known:
        nodes = walk(function)
        names = [n for n in nodes if isinstance(n, ast.Name)]
        returned = [n for n in nodes if isinstance(n, ast.Return) and n.value is not None]
        grown = {n.target for n in nodes if isinstance(n, ast.AugAssign) and _is_list(n.value)}
        known[function] = _Inside(
            names,
            [n for n in nodes if isinstance(n, (ast.Assign, ast.For))],
            frozenset(name for node in returned for name in names_in(node)),
            frozenset(n.id for n in names if type(n.ctx) is ast.Store and n not in grown),
        )
    return known[function]


def _functions(study: Study) -> dict[ast.AST, _Inside]:
    return {}


def _named(nodes: Iterable[ast.AST], name: str) -> Iterator[str]:
    """What else a function calls what it is given."""
    for node in nodes:
        match node:
            case ast.Assign(value=ast.Name(id=given)) if given == name:
                yield from (t.id for t in node.targets if isinstance(t, ast.Name))


def _taken_out(nodes: Iterable[ast.AST], names: set[str]) -> Iterator[str]:
    """What a function calls the lists in what it is given: ``hidden = out["hidden"]``."""
    for node in nodes:
        match node:
            case (
                ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Subscript(value=ast.Name(id=given))
                    | ast.Call(func=ast.Attribute(value=ast.Name(id=given), attr="get")),
                )
                | ast.For(
                    target=ast.Name(id=name),
                    iter=ast.Name(id=given)
                    | ast.Call(func=ast.Attribute(value=ast.Name(id=given), attr="values")),
                )
            ) if given in names:
                yield name


def _part(given: ast.expr, parents: Mapping[ast.AST, ast.AST]) -> ast.expr | None:
    """What is taken out of something there: ``out["hidden"]``, ``out.get("hidden")``."""
    match parents[given]:
        case ast.Subscript(value=value) as part if value is given:
            return part
        case ast.Attribute(attr="get") as method:
            call = parents[method]
            return call if isinstance(call, ast.Call) and call.func is method else None
    return None


def _fills_inner(part: ast.expr, parents: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether something is put into what is taken out of an input, which may be a tensor too."""
    parent = parents[part]
    match parent:
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if target is part:
            return _is_list(value)
        case ast.Attribute(attr=attr) if attr in FILLING:
            return isinstance(call := parents[parent], ast.Call) and call.func is parent
        case ast.Subscript(
            value=value, slice=ast.Constant(value=str()), ctx=ast.Store() | ast.Del()
        ):
            return value is part
    return False


def _is_list(node: ast.expr) -> bool:
    return isinstance(node, (ast.List, ast.ListComp))


def _handed(
    given: ast.expr, call: ast.Call, value: Function, study: Study, depth: int
) -> Iterator[tuple[ast.expr, Module]]:
    node = value.node
    assert isinstance(node, ast.FunctionDef)
    bound = value.owner is not None
    for each in _arguments(node):
        if study.tracer.argument(call, node, each.arg, bound=bound) is given:
            yield from _in_function(each, node, value.module, study, depth)


def _fills(use: ast.expr, parent: ast.AST, argument: ast.arg, module: Module, study: Study) -> bool:
    """Whether what is around a use puts something into it."""
    table = module.table
    match parent:
        case ast.AugAssign(target=target, op=ast.Add(), value=value) if target is use:
            return _is_list(value)
        case ast.Attribute(attr=attr) if attr in FILLING | ALSO_OTHERS:
            call = table.parents[parent]
            if not isinstance(call, ast.Call) or call.func is not parent:
                return False
            if attr in FILLING and argument.annotation is None:
                return not _is_object(use, module, study)
            return _looks_like_one(use, argument, module, study)
        case ast.Subscript(value=value, slice=key, ctx=ast.Store() | ast.Del()) if value is use:
            is_text = isinstance(key, ast.Constant) and isinstance(key.value, str)
            return is_text or _looks_like_one(use, argument, module, study)
    return False


def _is_object(use: ast.expr, module: Module, study: Study) -> bool:
    """Whether it is an object of a class, which FSDP2 hands on as it is."""
    return any(isinstance(getattr(v, "callee", None), Class) for v in study.values(use, module))


def _looks_like_one(use: ast.expr, argument: ast.arg, module: Module, study: Study) -> bool:
    """Whether it is a list or a dictionary by its annotation, or by what callers give."""
    if argument.annotation is not None:
        return not CONTAINERS.isdisjoint(names_in(argument.annotation))
    given = [*study.values(use, module), *_given_by_calls(argument, module, study)]
    return any(isinstance(v, Display) and not isinstance(v.node, ast.Tuple) for v in given)


def _given_by_calls(argument: ast.arg, module: Module, study: Study) -> Iterator[Value]:
    """What the calls of modules give to a parameter of their ``forward``."""
    method = enclosing_function(module, argument)
    cls = enclosing_models.class_of(argument, module)
    if not isinstance(method, ast.FunctionDef) or method.name != FORWARD or cls is None:
        return
    for where in study.project.modules:
        for call in where.table.calls if where.mentions(cls.node.name) else ():
            given = study.tracer.argument(call, method, argument.arg, bound=True)
            if given is not None and any(_is_of(v, cls) for v in _called(call, where, study)):
                yield from study.values(given, where)


def _called(call: ast.Call, module: Module, study: Study) -> Iterator[Value]:
    """What a call may run, an element of a list of modules as well: ``for block in blocks``."""
    yield from study.values(call.func, module)
    if isinstance(call.func, ast.Name):
        for definition in study.defined_by(call.func, module):
            if definition.kind is Kind.ELEMENT and definition.value is not None:
                yield from ModuleValues(study).elements(study.values(definition.value, module))


def _is_of(value: Value, cls: Class) -> bool:
    return (
        isinstance(value, Made)
        and isinstance(value.callee, Class)
        and (value.callee.node is cls.node)
    )
