"""Parameters that are still whole after a forward, and how they are sharded again.

FSDP2 leaves the root's parameters gathered after a forward, for the backward that needs them at
once. Where none follows, as in an evaluation, ``model.parameters()`` are plain tensors until the
next backward, and what is written to them is lost. Units below the root shard theirs after each
forward, unless their strategy is SHARD_GRAD_OP.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Unknown
from fsdp_migrate.families.training_loop.backwards import backward_follows, is_without_gradients
from fsdp_migrate.families.training_loop.early_optimizers import trained_models
from fsdp_migrate.families.training_loop.model_runs import NOTHING, RUNNING, Runs, is_quiet
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.entry_methods import entries
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.syntax.expressions import given_arguments

FREEZING = ("requires_grad", "freeze", "frozen")


def reshard_line(
    model: ast.expr, module: Module, near: ast.AST, study: Study, proposal: Proposal
) -> Code:
    """The statement that shards a model's parameters again."""
    if _is_root_alone(model, module, study):
        return code("{m}.reshard()", m=ast.unparse(model))
    function = proposal.support(module, "reshard_parameters", near)
    return code("{f}({m})", f=function, m=ast.unparse(model))


def _is_root_alone(model: ast.expr, module: Module, study: Study) -> bool:
    """Whether the root is the only unit of a model that stays gathered, and ``model`` is it.

    A unit that is called before the root, which would make it one, is an error in both versions.
    """
    found = study.models(model, module)
    models = found.constructors
    if not found.certain or study.project.mentions("CustomPolicy", "set_reshard_after_backward"):
        return False
    if not all(_reshards(c, study) for c in study.constructors.values()):  # which may be of parts
        return False
    if any(c.keeps_class for c in models):
        return False
    return bool(runs_of(models, study))


def _reshards(constructor: Constructor, study: Study) -> bool:
    found = strategies.strategies_of(constructor, study)
    return bool(found) and found.isdisjoint(strategies.RESHARD_NEVER)


def may_be_evaluated(models: frozenset[Constructor], study: Study) -> bool:
    """Whether a model may be evaluated: by ``eval()``, without gradients, or out of sight."""
    own = runs_of(models, study)
    if not own or not study.cache(_runs).evaluated.isdisjoint(c.call for c in models):
        return True
    return any(is_without_gradients(run.call, run.module) for run in own)


def may_stay_gathered(models: frozenset[Constructor], study: Study) -> bool:
    """Whether a forward of a model may be followed by anything but its backward.

    An evaluation, or one whose backward is not in sight, or goes through nothing that is trained.
    """
    if may_be_evaluated(models, study):
        return True
    if study.project.mentions(*FREEZING) and not models <= trained_models(study):
        return True
    keep = ("no_sync", "set_reshard_after_backward")  # which keep parameters from being sharded
    if study.project.mentions(*keep) and not all(_reshards(c, study) for c in models):
        return True
    return not all(backward_follows(run.call, run.module, study) for run in runs_of(models, study))


@dataclass(frozen=True, eq=False)
class Run:
    """A call that runs a model, which one of the calls ``made`` it."""

    call: ast.Call
    module: Module
    made: frozenset[ast.AST]


@dataclass(frozen=True, eq=False)
class AllRuns:
    """What runs the models of a project, which are known by the calls that make them."""

    called: tuple[Run, ...]
    evaluated: frozenset[ast.AST]  # eval() is called on them, or code out of sight may run them


def runs_of(models: frozenset[Constructor], study: Study) -> list[Run]:
    made = {c.call for c in models}
    return [run for run in study.cache(_runs).called if not run.made.isdisjoint(made)]


def _runs(study: Study) -> AllRuns:
    runs = Runs(study)
    running = RUNNING.union(entry.name for entry in entries(study))
    called: list[Run] = []
    evaluated: set[Constructor] = set()
    for module in study.project.modules:
        for call in module.table.calls:
            is_object = runs.is_object(call.func, module)
            found = runs.models(call.func, module, {}) if is_object else NOTHING
            method = call.func if isinstance(call.func, ast.Attribute) else None
            if not found and method is not None and method.attr in (*running, "eval"):
                owner = runs.models(method.value, module, {})
                if method.attr == "eval":
                    evaluated |= owner
                found = owner if method.attr in running else found
            if found:
                called.append(Run(call, module, frozenset(c.call for c in found)))
                continue
            if is_quiet(call) or not any(map(access_path, given_arguments(call))):
                continue
            for callee in study.values(call.func, module):
                if isinstance(callee, (External, Unknown)):
                    evaluated |= runs.outside(call, callee, module, {})
    return AllRuns(tuple(called), frozenset(c.call for c in evaluated))
