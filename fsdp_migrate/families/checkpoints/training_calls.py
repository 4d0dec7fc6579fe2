"""Calls that train: by their names, or since they lead to one that does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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
    return any(
        isinstance(value, Function) and _trains(value, study, depth)
        for value in study.values(call.func, module)
    )


def _trains(function: Function, study: Study, depth: int) -> bool:
    known = study.cache(_training_functions)
    if function.node not in known:
        known[function.node] = any(training_calls(function.node)) or (
            depth > 0
            and any(
                leads_to_training(call, function.module, study, depth - 1)
                for call in walk(function.node)
                if isinstance(call, ast.Call)
            )
        )
    return known[function.node]


def _training_functions(study: Study) -> dict[ast.AST, bool]:
    return {}
