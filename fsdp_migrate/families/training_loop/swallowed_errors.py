"""Training steps of which an error stops nothing.

What FSDP2 refuses ends a program with an error, as a rule, and needs no marker for that. Under
``for batch in loader: try: step(batch) except Exception: continue`` it is a step less instead.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.branches_taken import BranchesTaken
from fsdp_migrate.analysis.tracing.functions import CallSite
from fsdp_migrate.analysis.values import Frame, FunctionNode
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS, walk

CAUGHT = frozenset({"RuntimeError", "Exception", "BaseException"})
LEAVING = frozenset({"exit", "_exit", "quit", "abort"})
DEEP = 3  # functions between a backward and the loop
WHY = "an error in a training step stops nothing here, so that what FSDP2 refuses is a step less"


def find_swallowed(study: Study, module: Module) -> Iterator[tuple[ast.expr, str]]:
    """The backwards of which errors are caught in a loop that goes on, with the reason."""
    near = study.reached_from(module) if module.mentions("backward") else []
    for call in module.table.calls_by_name.named("backward") if near else ():
        if isinstance(call.func, ast.Attribute) and _goes_on(call, module, near, study, DEEP):
            yield call, WHY


def _goes_on(
    call: ast.Call, module: Module, models: list[Constructor], study: Study, depth: int
) -> bool:
    """Whether a loop around a call, or around one of its function's, goes on after an error, where
    some of the models may be met."""
    child: ast.AST = call
    swallowed = False
    for parent in module.table.ancestors(call):
        if isinstance(parent, FUNCTIONS):
            callers = study.tracer.callers(parent, module) if depth else ()
            return any(
                _goes_on(c.call, c.module, models, study, depth - 1)
                for c in callers
                if not _makes_none(c, parent, models, study)
            )
        if isinstance(parent, (ast.Try, ast.TryStar)) and child in parent.body:
            swallowed = swallowed or any(map(_swallows, parent.handlers))
        if swallowed and isinstance(parent, LOOPS):
            return True
        child = parent
    return False


def _makes_none(
    caller: CallSite, function: FunctionNode, models: list[Constructor], study: Study
) -> bool:
    """Whether all models are made by a function, and not where a call of it gets to:
    ``train(Config(use_fsdp=False))``."""
    if caller.handed is not None or caller.spawned:
        return False
    branches = study.cache(_branches)
    frame = Frame(caller.call, caller.module, function, None, caller.partial, caller.configured)
    return all(
        function in made.module.table.ancestors(made.node)
        and branches.passes_by(frame, made.node, made.module)
        for made in models
    )


def _branches(study: Study) -> BranchesTaken:
    return BranchesTaken(study.tracer)


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes what torch raises, and never ends the program or the loop."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    if not any(kind is None or last_name(kind) in CAUGHT for kind in kinds):
        return False
    return not any(
        isinstance(node, (ast.Raise, ast.Break, ast.Return))
        or (isinstance(node, ast.Call) and last_name(node.func) in LEAVING)
        for statement in handler.body
        for node in walk(statement)
    )
