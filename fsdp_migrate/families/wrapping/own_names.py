"""A wrapped module by the name that it had before: ``net`` of ``model = FSDP(net)``.

FSDP1's wrapper was another object, and the module inside had its parameters in pieces. After
``fully_shard(net)`` the module itself is the model. Either way what is asked of ``net`` behind the
wrap is asked of what is sharded.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import ELSEWHERE, access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.wrapping import gathered
from fsdp_migrate.families.wrapping.enclosing_models import class_of
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.unwrapping import INNER
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS

DEPTH = 3  # calls that the name is handed on by


def wrapped_by_now(
    node: ast.expr, module: Module, study: Study, depth: int = DEPTH
) -> frozenset[Constructor]:
    """The constructors that have wrapped what ``node`` names when it is asked, here or where a
    function around it is called with that."""
    if inside := in_wrapper(node, module, study):
        return inside
    known = study.cache(_wraps_by_name)
    path = access_path(node) if known else None
    if path is None:
        return frozenset()
    found = {
        constructor
        for call in known.get((module, path), ())
        for constructor in _made_by(call, module, study)
        if is_wrapped_before(node, call, path, module, study)
        and not study.narrowing.is_never_met(call, module, node, module)
    }
    if found or not depth or not isinstance(node, ast.Name):
        return frozenset(found)
    for argument, where in _given(node, module, study):
        for given in _handed_on(argument, where, study):
            if access_path(given) is not None and not study.traced(given, where):
                found |= wrapped_by_now(given, where, study, depth - 1)
    return frozenset(found)


def in_wrapper(node: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """The models of which something may be the module in FSDP1's wrapper: ``model.module``, or
    what it has become, while parameters are sharded. FSDP2's models are that themselves."""
    if study.traced(node, module):
        return frozenset()
    found = set[Constructor]()
    values = ((v.node, v.module) for v in study.values(node, module))
    for each, where in ((node, module), *values):
        match each:
            case ast.Attribute(value=owner, attr=attr) if attr in INNER:
                if not is_of_another(owner, where, node, module, study):
                    found |= study.models(owner, where).constructors
    if not found or any(c.keeps_class for c in found):
        return frozenset()
    return frozenset() if gathered.is_gathered(node, study, module) else frozenset(found)


def is_of_another(
    owner: ast.expr, where: Module, node: ast.expr, module: Module, study: Study
) -> bool:
    """Whether the call that gives ``node`` takes wrappers off its parameter ``owner``, and is given
    no model of FSDP1's: ``unwrap(model)`` behind ``if isinstance(model, FSDP): return``."""
    function = enclosing_function(where, owner)
    if not isinstance(owner, ast.Name) or not isinstance(function, FUNCTIONS):
        return False
    inner = {f"{owner.id}.{name}" for name in INNER}
    for each in definitions(owner, where):
        taken_off = each.value is not None and access_path(each.value) in inner
        if each.kind is not Kind.PARAMETER and not taken_off:
            return False
    calls = {node, *(each.value for each in study.defined_by(node, module))}
    callers = [c for c in study.tracer.callers(function, where) if c.call in calls]
    given = [caller.argument(function, owner.id) for caller in callers]
    return bool(given) and all(
        each is not None
        and study.narrowing.verdict(each, module) is False
        and not study.traced(each, module)
        for each in given
    )


def is_another(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression is a module that is made in sight, and that nothing wraps."""
    made = {v.node if isinstance(v, Made) else None for v in study.values(node, module)}
    return bool(made) and None not in made and made.isdisjoint(study.cache(_wrapped))


def _wrapped(study: Study) -> frozenset[ast.AST]:
    """What makes the modules that are wrapped."""
    every = study.constructors.values()
    given = (study.values(c.wrapped, c.module) for c in every if c.has_module)
    return frozenset(v.node for values in given for v in values if isinstance(v, Made))


def _handed_on(
    node: ast.expr, module: Module, study: Study, depth: int = DEPTH
) -> Iterator[ast.expr]:
    """What may be handed on as an argument: ``net`` of ``net or other``, and of ``same(net)``
    where that function gives back what it is given."""
    match node:
        case ast.BoolOp(values=parts):
            pass
        case ast.IfExp(body=one, orelse=other):
            parts = [one, other]
        case ast.NamedExpr(value=part):
            parts = [part]
        case ast.Call(func=ast.Lambda(body=part, args=ast.arguments(args=[]))):
            parts = [part]
        case ast.Call():
            parts = [a for a in _arguments(node) if _is_result(a, node, module, study)]
        case _:
            yield node
            return
    for part in parts if depth else ():
        yield from _handed_on(part, module, study, depth - 1)


def _is_result(given: ast.expr, call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call gives back what an argument is, as its values tell."""
    values = study.values(given, module)
    made = {v.node for v in values if isinstance(v, Made) and v.node is not call}
    return any(v.node in made for v in study.values(call, module))


def is_wrapped_before(
    node: ast.expr, call: ast.Call, path: str, module: Module, study: Study
) -> bool:
    """Whether ``node`` is what a call above was given, at ``path``: of the same definitions, or an
    attribute that a method of the same class wraps first of all."""
    if _is_given_back(call, path, module):
        return False  # self.net = FSDP(self.net): what the name is later is the model itself
    here, there = _past_lambdas(node, module), enclosing_function(module, call)
    runs = [call] if here is there else _runs_inside(here, there, module, study)
    if any(_is_above(each, node) for each in runs):
        wrapped = next((a for a in _arguments(call) if access_path(a) == path), None)
        first = definitions(node, module) if wrapped is not None else frozenset()
        is_same = wrapped is not None and first == definitions(wrapped, module)
        if is_same and (first or path.startswith("self.")):
            return True
    if here is there:
        return False
    if isinstance(node, ast.Name) and _is_shared(node, call, path, module):
        return True
    owner, other = class_of(node, module), class_of(call, module)
    if not path.startswith("self.") or owner is None or other is None:
        return False
    own = definitions(node, module)
    if own and ELSEWHERE not in own:
        return False  # the method has given the name something else
    lineages = map(study.tracer.lineage, (owner, other))
    if not any({owner.node, other.node} <= {cls.node for cls in each} for each in lineages):
        return False
    return not _runs_before(node, here, call, there, module, study)


def _runs_before(
    node: ast.expr, here: ast.AST, call: ast.Call, there: ast.AST, module: Module, study: Study
) -> bool:
    """Whether a place in a method is only reached before a call in another method of the class."""
    moment = study.tracer.moment(node, module)
    name = getattr(there, "name", "")
    if moment is not None:  # a method that runs in ``__init__`` alone
        if name == "__init__":
            return moment.precedes(module.table.statement(call), module)
        set_up = (c for c in module.table.calls_in(moment.function) if _is_on_self(c, name))
        return not any(c.lineno < moment.line for c in set_up)
    if not isinstance(here, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    callers = study.tracer.callers(here, module)
    return bool(callers) and all(
        enclosing_function(c.module, c.call) is there and _is_above(c.call, call) for c in callers
    )


def _is_on_self(call: ast.Call, name: str) -> bool:
    """Whether a call is of a method of that name of ``self``."""
    return access_path(call.func) == f"self.{name}"


def _is_shared(node: ast.Name, call: ast.Call, path: str, module: Module) -> bool:
    """Whether a name is the file's, set once, and two functions take it from there."""
    scopes = [module.table.scope_of(each) for each in (node, call)]
    owners = {scope.lookup(path) if scope.is_free(path) else None for scope in scopes}
    top = module.table.scope_of(node).module_scope()
    functions = all(isinstance(enclosing_function(module, e), FUNCTIONS) for e in (node, call))
    return functions and owners == {top} and len(module.defined_in(top, path)) == 1


def _past_lambdas(node: ast.expr, module: Module) -> ast.AST:
    """The function around, whose names a lambda on the way to it takes from there."""
    function = enclosing_function(module, node)
    while isinstance(function, ast.Lambda):
        function = enclosing_function(module, function)
    return function


def _runs_inside(here: ast.AST, there: ast.AST, module: Module, study: Study) -> Iterator[ast.Call]:
    """The calls in a function of another one that stands in it, with its names, and wraps one of
    them: ``(lambda: FSDP(net))()``."""
    if here not in module.table.ancestors(there):
        return
    if isinstance(there, (ast.FunctionDef, ast.AsyncFunctionDef)):
        calls = [c.call for c in study.tracer.callers(there, module) if c.module is module]
    else:
        calls = [c for c in module.table.calls if _calls_lambda(c, there, module, study)]
    yield from (call for call in calls if enclosing_function(module, call) is here)


def _calls_lambda(call: ast.Call, there: ast.AST, module: Module, study: Study) -> bool:
    """Whether a call runs a lambda, as it stands or by a name."""
    if call.func is there or not isinstance(call.func, ast.Name):
        return call.func is there
    return any(d.value is there for d in study.defined_by(call.func, module))


def _is_given_back(call: ast.Call, path: str, module: Module) -> bool:
    """Whether what a call gives takes the place of what it was given."""
    statement = module.table.statement(call)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return path in map(access_path, targets)


def _wraps_by_name(study: Study) -> dict[tuple[Module, str], list[ast.Call]]:
    """The calls that wrap what has a name: constructors, and calls of functions that give back a
    model of what they are given."""
    found: dict[tuple[Module, str], list[ast.Call]] = defaultdict(list)
    for constructor in study.constructors.values():
        if not constructor.has_module:
            continue
        wrapped, module = constructor.wrapped, constructor.module
        path = access_path(wrapped)
        if path is not None:
            found[module, path].append(constructor.call)
        function = enclosing_function(module, wrapped)
        if not isinstance(wrapped, ast.Name) or not isinstance(function, FUNCTIONS):
            continue
        for given, where in _given(wrapped, module, study):
            path = access_path(given)
            call = where.table.parents[given]
            call = where.table.parents[call] if isinstance(call, ast.keyword) else call
            if path is not None and isinstance(call, ast.Call) and study.traced(call, where):
                found[where, path].append(call)
    return dict(found)


def _made_by(call: ast.Call, module: Module, study: Study) -> Iterator[Constructor]:
    if call in study.constructors:
        yield study.constructors[call]
    else:
        yield from study.models(call, module).constructors


def _given(name: ast.Name, module: Module, study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What the calls of a function give to its parameter."""
    function = _past_lambdas(name, module)
    kinds = {d.kind for d in definitions(name, module)}
    if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    if kinds == {Kind.PARAMETER}:
        for caller in study.tracer.callers(function, module):
            given = caller.argument(function, name.id)
            if given is not None:
                yield given, caller.module


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _is_above(call: ast.Call, node: ast.expr) -> bool:
    return (call.end_lineno or call.lineno, call.end_col_offset or 0) <= (
        node.lineno,
        node.col_offset,
    )
