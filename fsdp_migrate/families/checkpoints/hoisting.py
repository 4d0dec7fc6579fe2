"""Moving a collective out of code that only some ranks run.

``if rank == 0: torch.save(model.state_dict(), path)`` waits for the other ranks forever: what
gathers must stand above the condition, where every rank comes by.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, FunctionNode, Made, Value
from fsdp_migrate.families.checkpoints import holders, ranks, statedicts
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study, sentences
from fsdp_migrate.planning.edits import Code, Proposal, code
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS

DEPTH = 3  # how many callers up a condition on the rank is looked for
ASKING = frozenset({"state_dict", "eval", "train"})  # methods that leave a model's weights alone
SETTINGS = frozenset(
    {"args", "cfg", "conf", "config", "hparams", "opt", "options", "params", "training_args"}
)
COUNTERS = ("step", "epoch", "iter", "interval", "every", "freq")
MODES = ("fsdp", "shard", "ddp", "distributed", "use_", "mode")
CALLED = (
    "one of the calls of this function stands under '{}': the state is gathered from every rank, "
    "so every rank must make the call"
)
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.NotEq: ast.Eq, ast.Eq: ast.NotEq}
PURE = (
    ast.Attribute,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.Constant,
    ast.Name,
    ast.UnaryOp,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
)


@dataclass(frozen=True, eq=False)
class Place:
    """Where every rank comes by before it reaches a condition on the rank.

    ``conditions`` are the parts of the conditions on the way that are the same on every rank;
    ``dropped`` those of which that cannot be told. ``problem`` says why nothing can be moved there.
    """

    statement: ast.stmt
    guard: str
    around: bool = True  # the statement holds what is moved, it does not just come first
    conditions: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    problem: str = ""
    tests: tuple[ast.expr, ...] = ()  # what holds where the state was taken, or else returned


@dataclass(frozen=True, eq=False)
class Standing:
    """Whether every rank reaches a collective, and where it would.

    ``problem`` says why it cannot be made so, ``review`` what is not certain about it.
    """

    place: Place | None = None
    problem: str = ""
    review: str = ""


def standing(
    site: Site, needed: tuple[ast.expr, ...], study: Study, *, fixed: bool = False
) -> Standing:
    """How ``site``, which gathers from all ranks, stands to conditions on the rank.

    Args:
        needed: the expressions that what is moved is made of.
        fixed: it cannot be moved.
    """
    model = needed[0] if needed else None
    condition, every = _called_under(site.node, site.module, study, DEPTH, model)
    place = None if every else find_place(site, needed, study)
    if place is not None and (place.problem or fixed):
        condition, every = place.guard, True
    if every:
        why = place.problem if place is not None else ""
        problem = f"the state is gathered under '{condition}', where not every rank takes part"
        return Standing(problem=f"{problem}, and {why}" if why else problem)
    return Standing(place, review=CALLED.format(condition) if condition else "")


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
    conditions, dropped = _conditions(site.node, statement, passed, module)
    if not around:  # conditions behind the return do not matter
        conditions, dropped = _sorted([(outer.test, False)], passed, module)
    tests = tuple(part for each in found for part in _held(each, site))
    return Place(statement, str(outer), around, conditions, dropped, problem, tests)


def _loop_names(node: ast.AST, module: Module) -> set[str]:
    """What the comprehensions around a node in its statement bind."""
    return {
        name.id
        for parent in module.table.ancestors(node)
        if isinstance(parent, COMPREHENSIONS)
        for generator in parent.generators
        for name in ast.walk(generator.target)
        if isinstance(name, ast.Name)
    }


def _held(guard: ranks.Guard, site: Site) -> list[ast.expr]:
    """The parts of a condition that hold where ``site`` stands, or do not behind a return."""
    if guard.exits:
        return _parts(guard.test, ast.Or)
    table = site.module.table
    child: ast.AST = site.node
    for parent in table.ancestors(site.node):
        if isinstance(parent, (ast.If, ast.IfExp)) and parent.test is guard.test:
            body = parent.body if isinstance(parent.body, list) else [parent.body]
            return _parts(guard.test, ast.And) if child in body else []
        child = parent
    return []


def _called_under(
    node: ast.AST, module: Module, study: Study, depth: int, model: ast.expr | None
) -> tuple[str, bool]:
    """A condition on the rank, or an empty text, under which the function around ``node`` is
    called, and whether every known call stands under one.

    Args:
        model: what gathers. Calls that pass something else for it do not count.
    """
    function = references.enclosing_function(module, node)
    if not isinstance(function, FUNCTIONS):
        return "", False
    defined = ranks.decorator(function) or ranks.guard(function, module)
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
    if not found or holders.held(node, module, study):
        return True
    return not all(_is_something_else(value, study) for value in found)


def _is_something_else(value: Value, study: Study) -> bool:
    """Whether a value is made by something that was given no FSDP1 model."""
    if isinstance(value, Constant):
        return True
    if not isinstance(value, Made) or references.is_model(value, study.tracer):
        return False
    if not isinstance(value.node, ast.Call):
        return isinstance(value.callee, Class)
    given = [*value.node.args, *(k.value for k in value.node.keywords)]
    a_class = isinstance(value.callee, Class) or value.made_by.rpartition(".")[2][:1].isupper()
    return a_class and not any(study.traced(each, value.module) for each in given)


def put(
    site: Site, found: Standing, value: Code, wanted: str, proposal: Proposal, rule: str
) -> tuple[str, bool]:
    """Compute ``value`` where every rank does, and use it where ``site`` stands.

    Returns:
        What may differ, for a review, and whether it is marked already.
    """
    place, module = found.place, site.module
    assert isinstance(site.node, ast.expr)
    if place is None:
        proposal.replace(module, site.node, value)
        return found.review, False
    kept = _own_name(site)
    if kept:
        name = kept
        proposal.delete(module, site.statement)
    else:
        if module.table.scope_of(site.node).lookup(wanted) is not None:
            wanted = f"model_{wanted}"
        name = proposal.fresh(module, site.node, wanted)
        proposal.replace(module, site.node, code("{n}", n=name))
    text = " and ".join(place.conditions)
    template = f"if {_escaped(text)}:\n    {{n}} = {{v}}" if text else "{n} = {v}"
    proposal.insert_before(module, place.statement, code(template, n=name, v=value))
    if place.dropped:
        spelled = " and ".join(place.dropped)
        review = (
            f"the state is gathered whether '{spelled}' holds or not, because every rank must "
            "take part and ranks may disagree; ask for it here if it is the same on all of them"
        )
        proposal.mark(module, place.statement, rule, sentences(review))
        return review, True
    return found.review, False


def spelled(needed: ast.expr, place: Place | None) -> ast.expr | str:
    """An expression as new code at ``place`` takes it: in front of an early return, as text."""
    return needed if place is None or place.around else ast.unparse(needed)


def is_saved_by_first(site: Site, place: Place, study: Study) -> bool:
    """Whether the first rank of all, and no other, has the state, and only writes it to a file."""
    exits = not place.around
    first = any(_is_first(part, site.module, study, exits=exits) for part in place.tests)
    if not first or _is_saved(site.node, site.module, study):
        return first
    name = _own_name(site)
    table = site.module.table
    scope = table.scope_of(site.statement)
    uses = [
        n
        for n in table.names
        if n.id == name and isinstance(n.ctx, ast.Load) and table.within[n].lookup(name) is scope
    ]
    return bool(uses) and all(_is_saved(n, site.module, study) for n in uses)


def _is_first(test: ast.expr, module: Module, study: Study, *, exits: bool) -> bool:
    """``torch.distributed.get_rank() == 0``, by any name; ``!=`` where the others returned."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1:
        return False
    zero, op = test.comparators[0], test.ops[0]
    if not isinstance(zero, ast.Constant) or zero.value != 0:
        return False
    if not isinstance(op, ast.NotEq if exits else ast.Eq):
        return False
    found = study.values(test.left, module)
    made = {v.made_by.replace(".distributed_c10d", "") for v in found if isinstance(v, Made)}
    calls = all(isinstance(v, Made) and _without_arguments(v.node) for v in found)
    return made == {"torch.distributed.get_rank"} and calls


def _without_arguments(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and not node.args and not node.keywords


def _is_saved(node: ast.AST, module: Module, study: Study) -> bool:
    """Whether a value is handed to ``torch.save``, alone or in a dictionary."""
    parent = module.table.parents[node]
    while isinstance(parent, (ast.Dict, ast.keyword)):
        parent = module.table.parents[parent]
    if not isinstance(parent, ast.Call):
        return False
    names = study.external(parent.func, module)
    if names == {"builtins.dict"}:
        return _is_saved(parent, module, study)
    return bool(names) and all(n in {"torch.save", "torch.serialization.save"} for n in names)


def _own_name(site: Site) -> str:
    """The name that only ``site``'s statement gives a value, when the statement can move whole."""
    statement = site.statement
    if not isinstance(statement, ast.Assign) or statement.value is not site.node:
        return ""
    target = statement.targets[0]
    if len(statement.targets) != 1 or not isinstance(target, ast.Name):
        return ""
    table = site.module.table
    scope = table.scope_of(statement).lookup(target.id)
    if scope is None or scope is not table.scope_of(statement):
        return ""
    last = statement.end_lineno or statement.lineno
    if len(scope.bindings[target.id]) != 1:
        return ""
    if any(site.module.source.comments(max(1, statement.lineno - 1), last)):
        return ""  # they stay with the statement
    return target.id if _leaves_something(statement, site.module) else ""


def _leaves_something(statement: ast.stmt, module: Module) -> bool:
    """Whether the blocks around a statement still have code without it."""
    parent = module.table.parents[statement]
    for name in ranks.BLOCKS:
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block and len(block) > 1:
            return True
    alone = isinstance(parent, ast.With) and len(parent.items) == 1
    if not alone:
        return False
    assert isinstance(parent, ast.With)
    context = parent.items[0].context_expr
    called = context.func if isinstance(context, ast.Call) else context
    is_kind = isinstance(called, ast.Attribute) and called.attr == "state_dict_type"
    return is_kind and _leaves_something(parent, module)


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
    """Why ``path`` may stand for something else, or for other weights, behind ``passed``."""
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
    """Whether a model or optimizer is only asked for its state, or told of a mode."""
    table = module.table
    parent = table.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr in ASKING
    call = table.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call):
        return not isinstance(parent, (ast.Assign, ast.NamedExpr))
    if statedicts.is_context(call, module, study):
        return True
    names = {name.rpartition(".")[2] for name in study.external(call.func, module)}
    return bool(
        names & {"optim_state_dict", "full_optim_state_dict", "isinstance", "hasattr", "print"}
    )


def _conditions(
    node: ast.AST, place: ast.stmt, passed: list[ast.AST], module: Module
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of the conditions between that every rank finds the same, and the others."""
    table = module.table
    path: list[tuple[ast.expr, bool]] = []
    child = node
    for parent in table.ancestors(node):
        if isinstance(parent, FUNCTIONS):
            break
        if isinstance(parent, ast.If) and child is not parent.test:
            path.append((parent.test, child in parent.body))
        child = parent
        if parent is place:
            break
    return _sorted(path[::-1], passed, module)


def _sorted(
    tests: list[tuple[ast.expr, bool]], passed: list[ast.AST], module: Module
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parts of ``tests``, which hold or do not hold, that are the same on every rank, and the
    others."""
    bound = {
        access_path(n)
        for each in passed
        for n in ast.walk(each)
        if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store)
    }
    kept: list[str] = []
    others: list[str] = []
    for test, holds in tests:
        for part in _parts(test, ast.And if holds else ast.Or):
            if ranks.mentions_rank(part):
                continue
            steady = _is_steady(part) and not _paths(part) & bound
            wanted = kept if steady and not (others and _reaches_in(part)) else others
            wanted.append(_spelled(part, module) if holds else _negated(part, module))
    return tuple(kept), tuple(others)


def _parts(test: ast.expr, kind: type[ast.boolop]) -> list[ast.expr]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, kind):
        return [part for value in test.values for part in _parts(value, kind)]
    return [test]


def _is_steady(test: ast.expr) -> bool:
    """Whether a condition is the same on every rank and costs nothing to ask twice.

    Only of counters, modes and settings that can be told: losses and scores are each rank's own.
    """
    if not all(isinstance(node, PURE) for node in ast.walk(test)):
        return False
    if isinstance(test, ast.Compare):
        texts = [isinstance(c, ast.Constant) and isinstance(c.value, str) for c in test.comparators]
        if all(texts):
            return True  # a mode
    return all(map(_is_steady_name, _paths(test)))


def _is_steady_name(path: str) -> bool:
    *owners, last = path.split(".")
    if any(owner in SETTINGS for owner in owners):
        return True
    return path.isupper() or any(word in last.lower() for word in COUNTERS + MODES)


def _paths(test: ast.expr) -> set[str]:
    """The longest dotted names in an expression."""
    found = set()
    stack: list[ast.AST] = [test]
    while stack:
        node = stack.pop()
        path = access_path(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if path is not None:
            found.add(path)
        else:
            stack.extend(ast.iter_child_nodes(node))
    return found


def _reaches_in(test: ast.expr) -> bool:
    return any("." in path for path in _paths(test))


def _spelled(node: ast.expr, module: Module) -> str:
    """An expression as the project writes it, on one line."""
    text = ast.get_source_segment(module.source.text, node) or ""
    if not text or "\n" in text:
        text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BoolOp) else text


def _negated(node: ast.expr, module: Module) -> str:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _spelled(node.operand, module)
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE and len(node.ops) == 1:
        opposite = ast.Compare(node.left, [OPPOSITE[type(node.ops[0])]()], node.comparators)
        return ast.unparse(opposite)
    text = _spelled(node, module)
    return f"not ({text})" if isinstance(node, (ast.Compare, ast.BinOp)) else f"not {text}"


def _escaped(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
