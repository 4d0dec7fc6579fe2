"""Where every rank comes by before code that only some ranks run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import (
    Class,
    Constant,
    Function,
    FunctionNode,
    Made,
    Value,
)
from fsdp_migrate.families.checkpoints import ranks, state_dict_settings
from fsdp_migrate.families.checkpoints.shared_conditions import (
    conditions_between,
    parts_of_test,
    sort_conditions,
)
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside
from fsdp_migrate.fsdp1 import model_values, references
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS

DEPTH = 3  # how many callers up a condition on the rank is looked for
ASKING = frozenset({"state_dict", "eval", "train"})  # methods that leave a model's weights alone
EVERY = "the state is gathered from every rank, so every rank must make the call"


@dataclass(frozen=True, eq=False)
class Place:
    """A statement that every rank reaches, above a condition on the rank.

    Between the two there may be more conditions. ``conditions`` are those that are the same on
    every rank, ``dropped`` the others. ``problem`` says why nothing can move there.
    """

    statement: ast.stmt
    guard: str
    where: str  # the guard has what is moved
    around: bool = True  # the statement holds what is moved, it does not just come first
    conditions: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    problem: str = ""
    tests: tuple[ast.expr, ...] = ()  # what holds where the state was taken, or else returned


@dataclass(frozen=True, eq=False)
class Standing:
    """Where every rank would reach a collective, if not all of them do where it stands.

    ``review`` says that not every rank may come here, where nothing can move. FSDP1 waited for the
    other ranks there as FSDP2 does, so that such code stops or never meets a sharded model.
    """

    place: Place | None = None
    review: str = ""
    shown: str = ""  # what a run has shown, where the code does not tell


def standing(
    site: Site, needed: tuple[ast.expr, ...], study: Study, *, fixed: bool = False
) -> Standing:
    """Whether every rank reaches ``site``, which gathers from all of them.

    Args:
        needed: the expressions in the code that would be moved.
        fixed: it cannot be moved.
    """
    model = needed[0] if needed else None
    condition, every = _called_under(site.node, site.module, study, DEPTH, model)
    review = f"this function is called {condition}: {EVERY}" if condition else ""
    place = None if every else find_place(site, needed, study)
    doubt = bool(condition) or (place is not None and (bool(place.problem) or fixed))
    if doubt and study.seen.by_every_rank(site.node, site.construct.attribute, site.module):
        where = condition or (place.where if place is not None else "")
        return Standing(shown=f"every rank comes by, {where}")
    if place is not None and (place.problem or fixed):
        why = f", and {place.problem}" if place.problem else ""
        return Standing(review=f"this stands {place.where}{why}: {EVERY}")
    return Standing(place, review)


def find_place(site: Site, needed: tuple[ast.expr, ...], study: Study) -> Place | None:
    """The place above every condition on the rank that ``site`` stands under, if any.

    Args:
        needed: the expressions that what is moved is made of.
    """
    module = site.module
    found = list(ranks.guards(site.node, module))
    if not found:
        return None
    outer = found[-1]
    statement, around = _whole_chain(outer.statement, module), not outer.exits
    passed = list(_passed(site.node, statement, module))
    problem = ""
    for expression in needed:
        path = access_path(expression)
        if path is None:
            problem = problem or f"{ast.unparse(expression)} is made there"
        elif not around and path.rpartition(".")[2] in {"module", "_fsdp_wrapped_module"}:
            problem = problem or f"{path} is unwrapped there"
        elif path.split(".")[0] in _loop_names(site.node, module):
            problem = problem or f"{path} is one of several there"
        else:
            problem = problem or _disturbed(path, passed, module, study)
    conditions, dropped = conditions_between(site.node, statement, passed, module)
    if not around:  # conditions behind the return do not matter
        conditions, dropped = sort_conditions([(outer.test, False)], passed, module)
    tests = tuple(part for each in found for part in held_parts(each, site.node, module))
    return Place(statement, str(outer), outer.where, around, conditions, dropped, problem, tests)


def _loop_names(node: ast.AST, module: Module) -> set[str]:
    """The variables of the comprehensions around a node."""
    return {
        name.id
        for parent in module.table.ancestors(node)
        if isinstance(parent, COMPREHENSIONS)
        for generator in parent.generators
        for name in ast.walk(generator.target)
        if isinstance(name, ast.Name)
    }


def held_parts(guard: ranks.Guard, node: ast.AST, module: Module) -> list[ast.expr]:
    """The parts of a condition that are true at ``node``, or false behind an early return."""
    if guard.exits:
        return parts_of_test(guard.test, ast.Or)
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and parent.test is guard.test:
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            return parts_of_test(guard.test, ast.And) if child in body else []
        child = parent
    return []


def _called_under(
    node: ast.AST, module: Module, study: Study, depth: int, model: ast.expr | None
) -> tuple[str, bool]:
    """Where a condition on the rank has the function around ``node`` called, or an empty text.

    The second answer is whether every known call stands under such a condition.

    Args:
        model: what gathers. Calls that pass something else for it do not count.
    """
    function = references.enclosing_function(module, node)
    if not isinstance(function, FUNCTIONS):
        return "", False
    defined = _decorator(function, module, study) or ranks.guard(function, module)
    if defined is not None:
        return defined, True
    if depth == 0:
        return "", False
    parameter = _parameter(model, function, study, module)
    conditions = []
    for caller in study.tracer.callers(function, module):
        passed = caller.argument(function, parameter) if parameter else None
        if passed is not None and not _may_be_model(passed, caller.module, study):
            continue
        here = ranks.guard(caller.call, caller.module)
        if here is None:
            above, every = _called_under(caller.call, caller.module, study, depth - 1, passed)
            here = above if every else None
        conditions.append(here)
    named = [c for c in conditions if c is not None]
    return (named[0] if named else ""), bool(named) and len(named) == len(conditions)


def _decorator(function: ast.AST, module: Module, study: Study) -> str | None:
    """The decorator that lets only some ranks run a function, as written.

    One of the project is read: what it is given may call the function on every rank.
    """
    found = ranks.decorator(function)
    if found is None:
        return None
    node, shown = found
    called = node.func if isinstance(node, ast.Call) else node
    values = study.values(called, module)
    for value in values:
        if not isinstance(value, Function):
            return f"under '{shown}'"
        table = value.module.table
        inside = {n for n in ast.walk(value.node) if isinstance(n, FUNCTIONS)}
        given = {a.arg for each in inside for a in each.args.args[:1]}
        calls = [c for c in table.calls_in(value.node) if getattr(c.func, "id", "") in given]
        if not calls or any(ranks.guard(call, value.module) for call in calls):
            return f"under '{shown}'"
    return None if values else f"under '{shown}'"


def _parameter(model: ast.expr | None, function: FunctionNode, study: Study, module: Module) -> str:
    """The parameter of a function that an expression in it is, or an empty text."""
    if not isinstance(model, ast.Name):
        return ""
    found = study.defined_by(model, module)
    arguments = function.args
    own = {*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs}
    return model.id if found and all(d.node in own for d in found) else ""


def _may_be_model(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression is an FSDP1 model, or may be one for all that is known."""
    found = study.values(node, module)
    if not found or sharded_inside(node, module, study):
        return True
    return not all(_is_something_else(value, study) for value in found)


def _is_something_else(value: Value, study: Study) -> bool:
    """Whether a value is made by something that was given no FSDP1 model."""
    if isinstance(value, Constant):
        return True
    if not isinstance(value, Made) or model_values.is_model(value, study.tracer):
        return False
    if not isinstance(value.node, ast.Call):
        return isinstance(value.callee, Class)
    given = given_arguments(value.node)
    a_class = isinstance(value.callee, Class) or value.made_by.rpartition(".")[2][:1].isupper()
    return a_class and not any(study.traced(each, value.module) for each in given)


def _whole_chain(statement: ast.stmt, module: Module) -> ast.stmt:
    """The ``if`` that an ``elif`` belongs to."""
    parent = module.table.parents[statement]
    while isinstance(parent, ast.If) and parent.orelse == [statement]:
        line = module.source.lines[statement.lineno - 1]
        if not line.lstrip().startswith("elif"):
            break
        statement, parent = parent, module.table.parents[parent]
    return statement


def _passed(node: ast.AST, place: ast.stmt, module: Module) -> Iterator[ast.AST]:
    """The code that runs between ``place`` and the statement of ``node``."""
    table = module.table
    child: ast.AST = table.statement(node)
    while child is not place:
        parent = table.parents[child]
        for name in ranks.BLOCKS:
            block = getattr(parent, name, None)
            if not isinstance(block, list) or child not in block:
                continue
            before = block[: block.index(child)]
            if place in before:
                yield from before[before.index(place) :]
                return
            yield from before
        if isinstance(parent, (ast.If, ast.While)):
            yield parent.test
        elif isinstance(parent, (ast.For, ast.AsyncFor)):
            yield parent
        elif isinstance(parent, (ast.With, ast.AsyncWith)):
            yield from parent.items
        elif isinstance(parent, ast.Try) and child not in parent.body:
            yield from parent.body
        child = parent


def _disturbed(path: str, passed: list[ast.AST], module: Module, study: Study) -> str:
    """Why ``path`` may be another object, or have other weights, after ``passed`` has run."""
    parts = path.split(".")
    prefixes = {".".join(parts[: n + 1]) for n in range(len(parts))}
    table = module.table
    for each in passed:
        nodes = _head(each) if isinstance(each, (ast.For, ast.AsyncFor)) else ast.walk(each)
        for node in nodes:
            if not isinstance(node, (ast.Name, ast.Attribute)):
                continue
            spelled = access_path(node)
            stored = not isinstance(node.ctx, ast.Load)
            if stored and spelled in prefixes:
                return f"{spelled} is assigned there"
            if spelled != path or _only_asks(node, module, study):
                continue
            parent = table.parents[node]
            if isinstance(parent, ast.Attribute) and not isinstance(
                table.parents[parent], ast.Call
            ):
                continue  # reads something else of it
            return f"{path} is used there before its state is taken"
    return ""


def _head(loop: ast.For | ast.AsyncFor) -> Iterator[ast.AST]:
    yield from ast.walk(loop.target)
    yield from ast.walk(loop.iter)


def _only_asks(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a use of a model or optimizer leaves it as it was: ``model.eval()``."""
    table = module.table
    parent = table.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr in ASKING
    call = table.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return not isinstance(parent, (ast.Assign, ast.NamedExpr))
    if state_dict_settings.is_context(call, module, study):
        return True
    names = {name.rpartition(".")[2] for name in study.external(call.func, module)}
    return bool(
        names & {"optim_state_dict", "full_optim_state_dict", "isinstance", "hasattr", "print"}
    )
