"""What of the training a state is asked for, or loaded, before and after.

After an evaluation the root's parameters are whole until the next backward. Torch's functions for
optimizers, and those that load, then do not know them. And an optimizer that has not stepped gets
a first step from ``get_optimizer_state_dict``, which this run would count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints.training_calls import leads_to_training, training_calls
from fsdp_migrate.families.training_loop.backwards import is_dropped
from fsdp_migrate.families.training_loop.gathered_roots import (
    may_stay_gathered,
    reshard_line,
    runs_of,
)
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.trees import LOOPS, block_of, walk

DEPTH = 3  # how many callers up calls are looked for
EVALUATION_WORDS = ("eval", "valid", "no_grad", "inference_mode")


def is_evaluated(study: Study) -> bool:
    """Whether any file speaks of evaluations, or runs a model without a backward."""
    return any(map(study.project.mentions, EVALUATION_WORDS)) or bool(study.cache(_dropped_runs))


def _dropped_runs(study: Study) -> frozenset[ast.Call]:
    runs = runs_of(study.every_constructor, study)
    return frozenset(run.call for run in runs if is_dropped(run.call, run.module))


def may_follow_evaluation(node: ast.AST, module: Module, study: Study, depth: int = DEPTH) -> bool:
    """Whether something before ``node`` trains or evaluates, here or where this is called."""
    if not is_evaluated(study):
        return False
    function = enclosing_function(module, node)
    loops = [each for each in module.table.ancestors(node) if isinstance(each, LOOPS)]
    line = getattr(node, "lineno", 0)
    for call in (*training_calls(function), *_evaluations(function, study)):
        repeated = any(loop in module.table.ancestors(call) for loop in loops)
        if enclosing_function(module, call) is function and (call.lineno < line or repeated):
            return True
    return depth > 0 and any(
        may_follow_evaluation(caller, other, study, depth - 1)
        for caller, other in _callers(function, module, study)
    )


def comes_before_training(node: ast.AST, module: Module, study: Study, depth: int = DEPTH) -> bool:
    """Whether ``node`` is reached before the first step: training comes below it and not above."""
    function = enclosing_function(module, node)
    line = getattr(node, "lineno", 0)
    steps = list(_steps(function, module, study))
    around = set(module.table.ancestors(node))
    if steps:
        loops = [each for step in steps for each in module.table.ancestors(step)]
        in_loop = any(isinstance(each, LOOPS) and each in around for each in loops)
        return not in_loop and all(step.lineno > line for step in steps)
    return depth > 0 and any(
        comes_before_training(caller, other, study, depth - 1)
        for caller, other in _callers(function, module, study)
    )


def meets_gradients(node: ast.AST, module: Module, study: Study) -> bool:
    """Whether gradients may be there at ``node``: something trains above it, and some function
    leaves the gradients of its last backward."""
    return _follows_training(node, module, study, DEPTH) and study.cache(_are_left)


def _follows_training(node: ast.AST, module: Module, study: Study, depth: int) -> bool:
    function = enclosing_function(module, node)
    line = getattr(node, "lineno", 0)
    return any(step.lineno < line for step in _steps(function, module, study)) or any(
        _follows_training(caller, other, study, depth - 1)
        for caller, other in (_callers(function, module, study) if depth else ())
    )


def _are_left(study: Study) -> bool:
    for module in study.project.modules:
        dropped = list(module.table.calls_by_name.named("zero_grad"))
        for backward in module.table.calls_by_name.named("backward"):
            function = enclosing_function(module, backward)
            if not any(
                call.lineno > backward.lineno and enclosing_function(module, call) is function
                for call in dropped
            ):
                return True
    return False


def _steps(function: ast.AST, module: Module, study: Study) -> Iterator[ast.Call]:
    """The calls in a function itself that train: by their names, or in functions they lead to."""
    training = set(training_calls(function))
    for call in walk(function):
        if not isinstance(call, ast.Call) or enclosing_function(module, call) is not function:
            continue
        if call in training or leads_to_training(call, module, study):
            yield call


def _evaluations(function: ast.AST, study: Study) -> Iterator[ast.Call]:
    dropped = study.cache(_dropped_runs)
    for call in walk(function):
        if isinstance(call, ast.Call):
            name = (access_path(call.func) or "").rpartition(".")[2]
            if call in dropped or any(word in name for word in EVALUATION_WORDS):
                yield call


def _callers(function: ast.AST, module: Module, study: Study) -> Iterator[tuple[ast.AST, Module]]:
    if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        for caller in study.tracer.callers(function, module):
            yield caller.call, caller.module


def follows_model_state(site: Site, path: str) -> bool:
    """Whether the model's own state is asked for or loaded shortly before: that reshards."""
    table = site.module.table
    statement: ast.AST = site.statement
    while isinstance(statement, ast.stmt):
        block = block_of(table.parents[statement], statement)
        for earlier in block[: block.index(statement) + 1]:
            for node in ast.walk(earlier):
                method = node.func if isinstance(node, ast.Call) else None
                if isinstance(method, ast.Attribute) and method.attr in _STATES:
                    is_earlier = site.module.position(method) < site.position
                    if is_earlier and access_path(method.value) == path:
                        return True
        statement = table.parents[statement]
        if not isinstance(statement, (ast.With, ast.AsyncWith)):
            return False
    return False


_STATES = ("state_dict", "load_state_dict")


def reshard_before(
    statement: ast.stmt, model: ast.expr, site: Site, study: Study, proposal: Proposal
) -> None:
    """Shard the parameters of ``model`` again in front of a statement, if they may be whole."""
    models = study.models(model, site.module).constructors
    if access_path(model) is not None and may_stay_gathered(models, study):
        line = reshard_line(model, site.module, statement, study, proposal)
        proposal.insert_before(site.module, statement, line)
