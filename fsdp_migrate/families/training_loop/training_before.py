"""Whether a model was trained right before a statement: all of its parameters are sharded there."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop.backwards import (
    CALLERS_DEEP,
    all_callers,
    backward_follows,
)
from fsdp_migrate.families.training_loop.early_optimizers import (
    is_optimizer_name,
    trained_models,
)
from fsdp_migrate.families.training_loop.gathered_roots import runs_of
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import block_of

HARMLESS = frozenset(
    {"print", "zero_grad", "item", "len", "float", "int", "barrier", "no_grad"}
    | {"parameters", "named_parameters", "detach", "clone", "cpu", "zip", "enumerate", "list"}
)
SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)


def just_trained(
    statement: ast.stmt,
    study: Study,
    module: Module,
    resharded: Container[ast.stmt] = (),
    models: frozenset[Constructor] = frozenset(),
) -> bool:
    """Whether a model is taken to be sharded here: it was just made, trained, or resharded.

    Args:
        models: which it may be. Where optimizers are in sight and none has theirs, a step trains
            another model: a teacher, or an average that is evaluated.
    """
    trained = trained_models(study) if models else models
    is_others = bool(trained) and trained.isdisjoint(models)

    def trains(call: ast.Call) -> bool:
        if is_others:
            return study.constructors.get(call) in models
        return call in study.constructors or _is_training(call)

    def is_harmless(call: ast.Call) -> bool:
        return _is_harmless(call) or (is_others and (_is_training(call) or call in made))

    made = study.constructors
    return _trained(statement, module, trains, is_harmless, resharded) is True


def only_model_was_trained(
    statement: ast.stmt, model: ast.expr, study: Study, module: Module, depth: int = CALLERS_DEEP
) -> bool:
    """Whether the project's only model was surely made, or had its backward, right before this.

    Args:
        model: how it is written there: a function's parameter is followed to every caller.
    """
    models = study.models(model, module).constructors
    if not models.issuperset(study.constructors.values()):
        return False
    function = enclosing_function(module, statement)
    backwards = [n for n in ast.walk(function) if _is_backward(n)]
    followed = any(
        enclosing_function(module, run.call) is function
        and backward_follows(run.call, module, study)
        for run in runs_of(models, study)
    )

    def trains(call: ast.Call) -> bool:
        return call in study.constructors or (followed and [call] == backwards)

    def is_harmless(call: ast.Call) -> bool:
        return _is_harmless(call) or (_is_training(call) and not _is_backward(call))

    trained = _trained(statement, module, trains, is_harmless)
    if trained is not None or not isinstance(model, ast.Name) or not depth:
        return trained is True
    if not isinstance(function, ast.FunctionDef):
        return False
    callers = all_callers(function, module, study)
    for caller in callers:
        around = caller.module.table.statement(caller.call)
        given = caller.argument(function, model.id)
        others = [n for n in ast.walk(around) if isinstance(n, ast.Call) and n is not caller.call]
        if given is None or access_path(given) is None or not isinstance(around, SIMPLE):
            return False
        if not all(map(_is_harmless, others)):
            return False
        if not only_model_was_trained(around, given, study, caller.module, depth - 1):
            return False
    return bool(callers)


def _trained(
    statement: ast.stmt,
    module: Module,
    trains: Callable[[ast.Call], bool],
    is_harmless: Callable[[ast.Call], bool],
    resharded: Container[ast.stmt] = (),
) -> bool | None:
    """Whether a model was trained last; None where the function does nothing before to tell."""
    table = module.table
    while True:
        parent = table.parents[statement]
        block = block_of(parent, statement)
        for earlier in reversed(block[: block.index(statement)]):
            if earlier in resharded:
                return True
            calls = [n for n in ast.walk(earlier) if isinstance(n, ast.Call)]
            if any(map(trains, calls)):
                return isinstance(earlier, (ast.Expr, ast.Assign))
            if not all(map(is_harmless, calls)):
                return False
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return None
        if not isinstance(parent, (ast.With, ast.If)):
            return False
        statement = parent


def _is_training(call: ast.Call) -> bool:
    """``loss.backward()`` and ``optimizer.step()``."""
    method = call.func
    if not isinstance(method, ast.Attribute):
        return False
    owner = last_name(method.value).lower()
    return _is_backward(call) or (method.attr == "step" and ("opt" in owner or "scaler" in owner))


def _is_backward(node: ast.AST) -> bool:
    method = node.func if isinstance(node, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr == "backward"


def _is_harmless(call: ast.Call) -> bool:
    """Whether a call runs no model; names that end so are of what changes a tensor in place."""
    name = last_name(call.func)
    makes_optimizer = name[:1].isupper() and is_optimizer_name(name)
    return name in HARMLESS or makes_optimizer or (name.endswith("_") and not name.endswith("__"))
