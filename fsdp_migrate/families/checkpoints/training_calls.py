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
Does = Callable[[ast.AST, Module], bool]


def training_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that train, as their names say."""
    for call in walk(node):
        if isinstance(call, ast.Call):
            path = (access_path(call.func) or "").rpartition(".")
            name = path[2]
            trains = name.startswith("train") and not (path[0] and name == "train")
            if trains or name in STEPS:
                yield call


def leads_to_training(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call runs a function of the project's that trains, or leads to one."""
    known = study.cache(_training_functions)
    return _leads(call, module, study, known, lambda node, _: any(training_calls(node)))


def changes_parameters(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call loads other values into a model, or leads to such a load."""
    known = study.cache(_loading_functions)

    def loads(function: ast.AST, where: Module) -> bool:
        calls = (each for each in walk(function) if isinstance(each, ast.Call))
        return any(_loads(each, where, study) for each in calls)

    return _loads(call, module, study) or _leads(call, module, study, known, loads)


def _loads(call: ast.Call, module: Module, study: Study) -> bool:
    match call.func:
        case ast.Attribute(value=model, attr="load_state_dict"):
            return study.traced(model, module)
    return False


def _leads(
    call: ast.Call, module: Module, study: Study, known: dict[ast.AST, bool], does: Does
) -> bool:
    """Whether a call runs a function of the project's that does something, or leads to one."""
    return any(_reaches(each, study, known, does) for each in _called(call, module, study))


def _reaches(first: Function, study: Study, known: dict[ast.AST, bool], does: Does) -> bool:
    """Whether a function does something, or one that it leads to, however many are in between.

    A no is kept of all that was looked into: nothing that these lead to was left out.
    """
    waiting = [first]
    seen: dict[ast.AST, bool] = {first.node: False}
    for function in waiting:  # which grows meanwhile
        node, module = function.node, function.module
        if known.get(node, False) or (node not in known and does(node, module)):
            known[first.node] = known[node] = True
            return True
        calls = [] if node in known else [n for n in walk(node) if isinstance(n, ast.Call)]
        for called in (each for call in calls for each in _called(call, module, study)):
            if called.node not in seen:
                seen[called.node] = False
                waiting.append(called)
    known |= seen
    return False


def _called(call: ast.Call, module: Module, study: Study) -> list[Function]:
    return [value for value in study.values(call.func, module) if isinstance(value, Function)]


def _training_functions(study: Study) -> dict[ast.AST, bool]:
    return {}


def _loading_functions(study: Study) -> dict[ast.AST, bool]:
    return {}
