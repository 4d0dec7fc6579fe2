"""Calls that change parameters: by their names, or since they lead to one that does."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import walk

STEPS = frozenset({"backward", "step", "fit", "train_step", "training_step", "train_one_epoch"})
DEPTH = 3  # functions that lead to one that trains


def training_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that train, as their names say."""
    for call in walk(node):
        if isinstance(call, ast.Call):
            path = (access_path(call.func) or "").rpartition(".")
            name = path[2]
            trains = name.startswith("train") and not (path[0] and name == "train")
            if trains or name in STEPS:
                yield call


def leads_to_training(call: ast.Call, module: Module, study: Study, depth: int = DEPTH) -> bool:
    """Whether a call runs a function of the project's that trains, or leads to one."""
    known = study.cache(_training_functions)
    return _leads(call, module, study, depth, known, lambda node, _: any(training_calls(node)))


def changes_parameters(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call loads other values into a model, or leads to such a load."""
    known = study.cache(_loading_functions)

    def loads(function: ast.AST, where: Module) -> bool:
        calls = (each for each in walk(function) if isinstance(each, ast.Call))
        return any(_loads(each, where, study) for each in calls)

    return _loads(call, module, study) or _leads(call, module, study, DEPTH, known, loads)


def _loads(call: ast.Call, module: Module, study: Study) -> bool:
    match call.func:
        case ast.Attribute(value=model, attr="load_state_dict"):
            return study.traced(model, module)
    return False


def _leads(
    call: ast.Call,
    module: Module,
    study: Study,
    depth: int,
    known: dict[ast.AST, bool],
    does: Callable[[ast.AST, Module], bool],
) -> bool:
    """Whether a call runs a function of the project's that does something, or leads to one."""
    for value in study.values(call.func, module):
        if not isinstance(value, Function):
            continue
        if value.node not in known:
            known[value.node] = does(value.node, value.module) or (
                depth > 0
                and any(
                    _leads(each, value.module, study, depth - 1, known, does)
                    for each in walk(value.node)
                    if isinstance(each, ast.Call)
                )
            )
        if known[value.node]:
            return True
    return False


def _training_functions(study: Study) -> dict[ast.AST, bool]:
    return {}


def _loading_functions(study: Study) -> dict[ast.AST, bool]:
    return {}
