"""Write ``register_fsdp_forward_method`` for the methods that :mod:`.entry_methods` finds."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING

from packaging.version import Version

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Made
from fsdp_migrate.families.wrapping.computing_methods import FunctionNode
from fsdp_migrate.families.wrapping.enclosing_models import Role, role
from fsdp_migrate.families.wrapping.entry_methods import Entry, entries
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import FULLY_SHARD, ShardPlan, placement_problem
from fsdp_migrate.syntax.expressions import first_argument
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import FUNCTIONS

if TYPE_CHECKING:
    from fsdp_migrate.planning.context import Study
REGISTER = "register_fsdp_forward_method"

# Where the inner call is given something that requires gradients, its backward ends the unit's,
# and what the outer one computed before is never reduced.
# Measured on 2.7.1 (lost) and 2.13.0 (reduced).
NESTING = Version("2.13")


def registration_problem(entry: Entry, study: Study) -> tuple[str, str]:
    """Why an entry is not registered, and what to do by hand; nothing when it is."""
    name = entry.name
    by_hand = f'call {REGISTER}(model, "{name}") after wrapping'
    if isinstance(entry.function, ast.AsyncFunctionDef) or _yields(entry.function):
        return (
            f"{name}() goes on after FSDP2's hooks are over",
            "register a method that returns what it computes",
        )
    if entry.in_forward:
        return (
            f"forward() may call {name}() too, so it gets no hooks of its own: as in FSDP1, it "
            "must compute with wrapped children only",
            "where it does not, register a method that only calls it",
        )
    for call, module in entry.made.items():
        constructor = _constructor(call, module, study)
        # Only a root keeps its parameters when a call inside the method ends.
        if entry.nested and role(constructor, study) is not Role.ROOT:
            return (
                f"{name}() and another call of the model stand in each other, and the inner one "
                "frees the parameters of a part",
                "register a method that does all of it",
            )
        if entry.inside and study.target < NESTING and not _without_gradients(entry.function):
            return (
                f"{name}() and another call of the model stand in each other, and torch before "
                f"{NESTING} loses gradients of the outer one",
                "register a method that does all of it",
            )
        written = call is constructor.call and call not in study.run_time
        statement = module.table.statement(call)
        obstacle = placement_problem(constructor) if written else _obstacle(statement, call)
        if _target(statement, call, study) is not None:
            obstacle = ""
        if obstacle:
            return f"nothing can follow the wrapping, because {obstacle}", by_hand
    return "", ""


def classes_with_it(entry: Entry, study: Study) -> frozenset[str]:
    """The classes that were wrapped in the run, if the code does not tell them and all are known to
    have the method; none otherwise. What has it not refuses to have it registered, with an error.
    """
    if entry.everywhere:
        return frozenset()
    known = {cls.node.name for cls in (entry.cls, *study.tracer.subclasses(entry.cls))}
    met = [study.seen.construction_at(call, module) for call, module in entry.made.items()]
    classes = frozenset().union(*(each.classes for each in met if each is not None))
    return classes if None not in met and classes <= known else frozenset()


def _is_asked_for(entry: Entry, study: Study) -> bool:
    """Whether a model is asked for the method first: others may be wrapped there, without it, and
    registering it on those is an error."""
    return not entry.everywhere and not classes_with_it(entry, study)


def _without_gradients(function: FunctionNode) -> bool:
    """Whether a method runs without gradients, by its decorator."""
    decorators = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(ast.unparse(d).split(".")[-1] in {"no_grad", "inference_mode"} for d in decorators)


def registration_review(entry: Entry, study: Study, *, before_forward: bool = False) -> str:
    """What may differ once an entry is registered.

    Args:
        before_forward: whether it may run before the model itself is ever called. FSDP1's root
            is the first that is called, so that each unit was one of its own there.
    """
    models = constructors(entry, study)
    if entry.use.reads:
        return f"{entry.name}() now computes with whole parameters, in FSDP1 it saw flat pieces"
    if before_forward and casts_inputs(models, study) and _has_units(models):
        return (
            f"FSDP1 cast the floating-point inputs of each unit that {entry.name}() calls to "
            "param_dtype, since each was a root, unless the model itself was called first; now "
            f"those of {entry.name}() are cast, and those of units are not: where they are of "
            "another dtype, give the units' policy cast_forward_inputs=True"
        )
    if entry.has_inputs and casts_inputs(models, study):
        return (
            f"under mixed precision, floating-point inputs of {entry.name}() are now cast to "
            "param_dtype"
        )
    if _is_asked_for(entry, study) and not entry.told:
        return (
            f"what else is wrapped here gathers its parameters for {entry.name}() too, if it has "
            "such a method: every rank has to call it then"
        )
    return ""


def _has_units(models: Iterable[Constructor]) -> bool:
    return any(c.may_have("auto_wrap_policy") for c in models)


def casts_inputs(models: Iterable[Constructor], study: Study) -> bool:
    """Whether some of these models cast what they are called with."""
    return any(c.may_have("mixed_precision") and role(c, study) is not Role.PART for c in models)


def _constructor(call: ast.Call, module: Module, study: Study) -> Constructor:
    made = Made(call, module, callee=External(call, module, name=FULLY_SHARD))
    return next(study.made_by(made))


def constructors(entry: Entry, study: Study) -> frozenset[Constructor]:
    return frozenset(_constructor(call, module, study) for call, module in entry.made.items())


def _names(call: ast.Call, study: Study) -> dict[str, bool]:
    """The methods to register on the model that a call makes, each once for all its classes, and
    whether it is asked for them first."""
    made = [e for e in entries(study) if call in e.made and not registration_problem(e, study)[0]]
    asked = {e.name for e in made if _is_asked_for(e, study)}
    return {e.name: e.name in asked for e in made}


def plan_registration(plan: ShardPlan, study: Study) -> None:
    """Register a model's entry methods right behind its sharding."""
    constructor = plan.constructor
    names = _names(constructor.call, study)
    if not names:
        return
    target = _target(constructor.statement, constructor.call, study)
    if not placement_problem(constructor) and (plan.place is None or target is None):
        register = plan.name(FULLY_SHARD, REGISTER)
        plan.after[:0] = _registrations(register, plan.model, names)
        return
    target, near = present(target), constructor.statement
    register = plan.proposal.name(constructor.module, FULLY_SHARD, REGISTER, near)
    lines = _registrations(register, ast.unparse(target), names)
    plan.proposal.insert_after(constructor.module, constructor.statement, *lines)


def _registrations(register: str, model: Code | str, names: dict[str, bool]) -> list[Code]:
    lines = []
    for name, is_asked in names.items():
        line = code('{r}({m}, "{n}")', r=register, m=model, n=name)
        asked = code('if hasattr({m}, "{n}"):\n    {l}', m=model, n=name, l=line)
        lines.append(asked if is_asked else line)
    return lines


def register_made(constructor: Constructor, proposal: Proposal, study: Study) -> None:
    """Register entry methods behind the calls that make a model in the run-time form."""
    calls = {
        call: module
        for entry in entries(study)
        for call, module in entry.made.items()
        if _constructor(call, module, study) is constructor
    }
    for call, module in calls.items():
        names = _names(call, study)
        if not names:
            continue
        statement = module.table.statement(call)
        register = proposal.name(module, FULLY_SHARD, REGISTER, call)
        if isinstance(statement, ast.Return):
            wrapped = first_argument(call)
            named = isinstance(wrapped, ast.Name)
            model = wrapped.id if named else proposal.fresh(module, call, "model")  # type: ignore[union-attr]
            lines = _registrations(register, model, names)
            made = code("{m} = {c}", m=model, c=call)
            back = code("return {m}", m=model)
            proposal.replace_statement(module, statement, made, *lines, back)
        else:
            target = present(_target(statement, call, study))
            model = ast.unparse(target)
            lines = _registrations(register, model, names)
            proposal.insert_after(module, statement, *lines)


def _obstacle(statement: ast.stmt, call: ast.Call) -> str:
    returned = isinstance(statement, ast.Return) and statement.value is call
    return "" if returned else "it is a part of a larger expression"


def _target(statement: ast.stmt, call: ast.Call, study: Study) -> ast.expr | None:
    """The name or path that a statement gives to what ``call`` makes, if it runs.

    ``model = FSDP(net) if sharded else net``: registering does nothing to a model that is not
    sharded.
    """
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    else:
        return None
    value = statement.value
    if isinstance(value, ast.IfExp) and call in (value.body, value.orelse):
        other = value.orelse if call is value.body else value.body
        if not any(node in study.constructors for node in ast.walk(other)):
            value = call
    return target if value is call and access_path(target) is not None else None


def _yields(function: FunctionNode) -> bool:
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Yield, ast.YieldFrom)):
            return True
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return False
