"""Where a module stands in others: ``net.encoder.layers[i]`` is a part of ``net.encoder``.

Two expressions may share parameters if one object is on the way to both, and what is asked of it
for one is the beginning of what is asked of it for the other: ``net`` and ``net.encoder`` do,
``net.encoder`` and ``net.decoder`` do not.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Made, Value
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

Path = tuple[str, ...]
Places = Mapping[Value, frozenset[Path]]  # by an object, the ways from it
ANY = "*"  # one of an object's parts, it is not known which
DEEP = 6
CHILDREN = frozenset({"children", "named_children", "get_submodule", "items", "values"})
LISTING = frozenset({"enumerate", "list", "reversed", "tuple", "zip"})
CONTAINERS = frozenset({"torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict"})
CALLS_DEEP = 12  # functions that lead to where an object is made


def places(node: ast.expr, module: Module, study: Study) -> Places:
    """The objects that ``node`` may be found from, each with the ways there; itself by no step."""
    known = study.cache(_known)
    if node not in known:
        known[node] = _find(node, module, study)
    return known[node]


def _known(study: Study) -> dict[ast.expr, Places]:
    return {}


def _find(node: ast.expr, module: Module, study: Study) -> Places:
    found: dict[Value, set[Path]] = {}
    seen: set[tuple[ast.expr, Path]] = set()
    waiting: list[tuple[ast.expr, Module, Path]] = [(node, module, ())]
    for _ in range(DEEP):
        further: list[tuple[ast.expr, Module, Path]] = []
        for expression, where, path in waiting:
            if (expression, path) in seen:
                continue
            seen.add((expression, path))
            above = list(_above(expression, where, study))
            for value in study.values(expression, where):
                found.setdefault(value, set()).add(path)
                for part in _given(value):
                    for inner in study.values(part, value.module):
                        # What a container is made of: the ways to it go through both.
                        found.setdefault(inner, set()).add(path)
                if value.node is not expression and isinstance(value.node, ast.expr):
                    above += [(w, value.module, step) for w, step in _whole(value.node)]
            further += [(whole, at, (*step, *path)) for whole, at, step in above]
        waiting = further
    return {value: frozenset(paths) for value, paths in found.items()}


def shared(ones: Places, others: Places) -> set[Value]:
    """The objects from which one is found on the way to the other."""
    return {
        value
        for value in ones.keys() & others.keys()
        if any(_is_beginning(one, other) for one in ones[value] for other in others[value])
    }


def _is_beginning(one: Path, other: Path) -> bool:
    """Whether one way may be the beginning of the other, whichever is longer."""
    return all(a == b or ANY in (a, b) for a, b in zip(one, other, strict=False))


def _above(node: ast.expr, module: Module, study: Study) -> Iterator[tuple[ast.expr, Module, Path]]:
    """What ``node`` is asked of, and by which step; for a name, what it was bound to."""
    for whole, step in _whole(node):
        yield whole, module, step
    if is_self(node, module):
        for receiver, where in _receivers(node, module, study):
            yield receiver, where, ()
    if isinstance(node, ast.Name):
        for definition in study.defined_by(node, module):
            value = definition.value
            if value is None or value is node:
                continue
            if definition.kind is Kind.ELEMENT:
                yield value, module, (ANY,)
            elif definition.kind is Kind.ASSIGN:
                yield value, module, tuple(map(str, definition.unpack))


def _receivers(node: ast.expr, module: Module, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What the method is called on whose ``self`` a node is: ``net`` of ``net.groups()``."""
    method = enclosing_function(module, node)
    if not isinstance(method, FUNCTIONS) or getattr(method, "name", "") == "__init__":
        return
    for site in study.tracer.callers(method, module):
        function = site.call.func
        if site.bound and isinstance(function, ast.Attribute):
            yield function.value, site.module


def _whole(node: ast.expr) -> Iterator[tuple[ast.expr, Path]]:
    """``net`` of ``net.encoder``, ``net[0]``, ``getattr(net, name)``, ``net.children()``."""
    match node:
        case ast.Attribute(value=whole, attr=name):
            yield whole, (name,)
        case ast.Subscript(value=whole, slice=ast.Constant(value=key)):
            yield whole, (str(key),)
        case ast.Subscript(value=whole):
            yield whole, (ANY,)
        case ast.Call(func=ast.Name(id="getattr"), args=[whole, ast.Constant(value=name), *_]):
            yield whole, (str(name),)
        case ast.Call(func=ast.Name(id="getattr"), args=[whole, *_]):
            yield whole, (ANY,)
        case ast.Call(func=ast.Attribute(value=whole, attr=method)) if method in CHILDREN:
            yield whole, ()  # one of them is a step, which the loop over them makes
        case ast.Call(func=ast.Name(id=name), args=given) if name in LISTING:
            for each in given:
                yield each, ()


def _given(value: Value) -> list[ast.expr]:
    """What a container of modules is made of: ``nn.Sequential(encoder, head)``."""
    made = isinstance(value, Made) and value.made_by in CONTAINERS
    return value.node.args if made and isinstance(value.node, ast.Call) else []


def is_one_object(value: Value, function: ast.AST, module: Module, study: Study) -> bool:
    """Whether a value is one object in a run of a function of ``module``: what makes it is called
    once there, or on the way there."""
    around = enclosing_function(value.module, value.node)
    if around is function or not isinstance(around, FUNCTIONS):
        return True
    running = study.cache(_known_running)
    if function not in running:
        running[function] = _running(function, module, study)
    made = _calls_to(value.node, value.module, running[function], study, {})
    return _most_made(function, module, made, study, {}) <= 1


def _most_made(
    function: ast.AST,
    module: Module,
    made: Counter[ast.AST],
    study: Study,
    known: dict[ast.AST, int],
) -> int:
    """The most that a run of a function makes, with one of the calls that lead to it, and so on."""
    if function not in known:
        known[function] = made[function]  # a recursive call makes no more
        callers = study.tracer.callers(function, module) if isinstance(function, FUNCTIONS) else []
        known[function] += max(
            (
                _most_made(enclosing_function(c.module, c.call), c.module, made, study, known)
                for c in callers
            ),
            default=0,
        )
    return known[function]


def _known_running(study: Study) -> dict[ast.AST, frozenset[ast.AST]]:
    return {}


def _running(function: ast.AST, module: Module, study: Study) -> frozenset[ast.AST]:
    """The functions and modules that may be running when ``function`` is, itself among them."""
    found = {function}
    waiting = [(function, module)]
    for each, where in waiting:
        for caller in study.tracer.callers(each, where) if isinstance(each, FUNCTIONS) else ():
            around = enclosing_function(caller.module, caller.call)
            if around not in found:
                found.add(around)
                waiting.append((around, caller.module))
    return frozenset(found)


def _calls_to(
    node: ast.AST,
    module: Module,
    running: frozenset[ast.AST],
    study: Study,
    counted: dict[ast.AST, Counter[ast.AST]],
) -> Counter[ast.AST]:
    """How many calls of each of some functions come to ``node``; two where there may be more."""
    around = enclosing_function(module, node)
    if around in running:
        return Counter({around: 1})
    if not isinstance(around, FUNCTIONS):
        return Counter()
    if around not in counted:
        callers = study.tracer.callers(around, module)
        counted[around] = Counter()  # a recursive call makes no other way there
        if callers and len(counted) > CALLS_DEEP:
            counted[around] = Counter(dict.fromkeys(running, 2))
        else:
            ways = (_calls_to(c.call, c.module, running, study, counted) for c in callers)
            counted[around] = sum(ways, Counter())
    return counted[around]
