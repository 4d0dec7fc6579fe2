"""Parameters that are still whole after a forward, and how they are sharded again.

FSDP2 leaves the root's parameters gathered after a forward, for the backward that needs them at
once. Where none follows, as in an evaluation, ``model.parameters()`` are plain tensors until the
next backward, and what is written to them is lost. Units below the root shard theirs after each
forward, unless their strategy is SHARD_GRAD_OP.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External, Function, Unknown
from fsdp_migrate.families.training_loop.backwards import (
    CALLERS_DEEP,
    backward_follows,
    is_without_gradients,
)
from fsdp_migrate.families.training_loop.early_optimizers import trained_models
from fsdp_migrate.families.training_loop.model_runs import NOTHING, RUNNING, Runs, is_quiet
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.entry_methods import entries
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
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


def resharded_first(
    site: Site,
    subjects: Iterable[ast.expr],
    study: Study,
    rule: str,
    *,
    models: frozenset[Constructor],
    before: ast.stmt | None = None,
    review: str = "",
) -> Decision:
    """The answer for a site in front of whose statement, or of ``before``, models are resharded."""
    proposal = study.proposal()
    lines = [reshard_line(m, site.module, site.node, study, proposal) for m in subjects]
    proposal.insert_before(site.module, before or site.statement, *lines)
    return study.rewritten(site, rule, "resharded first", proposal, models=models, review=review)


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
    return _runs_without_gradients(models, study) or _is_evaluated(models, study)


def may_stay_gathered(models: frozenset[Constructor], study: Study) -> bool:
    """Whether a forward of a model may be followed by anything but its backward.

    An evaluation, or one whose backward is not in sight, or goes through nothing that is trained.
    What takes most tracing is asked last.
    """
    if _runs_without_gradients(models, study):
        return True
    if study.project.mentions(*FREEZING) and not models <= trained_models(study):
        return True
    keep = ("no_sync", "set_reshard_after_backward")  # which keep parameters from being sharded
    if study.project.mentions(*keep) and not all(_reshards(c, study) for c in models):
        return True
    if not all(backward_follows(run.call, run.module, study) for run in runs_of(models, study)):
        return True
    return _is_evaluated(models, study)


def _runs_without_gradients(models: frozenset[Constructor], study: Study) -> bool:
    """Whether a model is called without gradients, or nowhere in sight."""
    own = runs_of(models, study)
    return not own or any(
        _is_without_gradients(run.call, run.module, models, study, CALLERS_DEEP) for run in own
    )


def _is_without_gradients(
    call: ast.Call, module: Module, models: frozenset[Constructor], study: Study, depth: int
) -> bool:
    """Whether a call runs without gradients, or the function around it where it gets a model."""
    if is_without_gradients(call, module):
        return True
    function = enclosing_function(module, call)
    if not depth or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    for site in study.tracer.callers(function, module):
        each = (study.models(a, site.module) for a in given_arguments(site.call))
        given = frozenset(c for found in each for c in found.constructors)
        is_others = bool(given) and given.isdisjoint(models)
        if not is_others and _is_without_gradients(
            site.call, site.module, models, study, depth - 1
        ):
            return True
    return False


def _is_evaluated(models: frozenset[Constructor], study: Study) -> bool:
    """Whether ``eval()`` is called on a model, or code out of sight may run it."""
    made = {c.call for c in models}
    found = (study.cache(each) for each in (_set_to_evaluate, _run_out_of_sight))
    return any(not made.isdisjoint(calls) for calls in found)


@dataclass(frozen=True, eq=False)
class Run:
    """A call that runs a model, which one of the calls ``made`` it."""

    call: ast.Call
    module: Module
    made: frozenset[ast.AST]
    is_direct: bool = True  # the model itself is called, not a method of its


def runs_of(models: frozenset[Constructor], study: Study) -> list[Run]:
    made = {c.call for c in models}
    return [run for run in study.cache(_runs).values() if not run.made.isdisjoint(made)]


def are_called_in_training(models: frozenset[Constructor], study: Study) -> bool:
    """Whether models themselves, not a method of theirs, are called where there are gradients."""
    return any(
        run.is_direct and not is_without_gradients(run.call, run.module)
        for run in runs_of(models, study)
    )


def _runs(study: Study) -> dict[ast.Call, Run]:
    """What runs the models of a project, which are known by the calls that make them."""
    runs = Runs(study)
    running = RUNNING.union(entry.name for entry in entries(study))
    found: dict[ast.Call, Run] = {}
    for module in study.project.modules:
        for call in module.table.calls:
            models = _called(call, module, runs)
            is_direct = bool(models)
            method = call.func if isinstance(call.func, ast.Attribute) else None
            if not models and method is not None and method.attr in running:
                models = runs.models(method.value, module, {})
            if models:
                found[call] = Run(call, module, frozenset(c.call for c in models), is_direct)
    return found


def _called(call: ast.Call, module: Module, runs: Runs) -> frozenset[Constructor]:
    """The models that a call calls as they are."""
    is_object = runs.is_object(call.func, module)
    return runs.models(call.func, module, {}) if is_object else NOTHING


def _set_to_evaluate(study: Study) -> frozenset[ast.AST]:
    """The calls that make the models of which ``eval()`` is called."""
    runs = Runs(study)
    found: set[Constructor] = set()
    for module in study.project.modules:
        for call in module.table.calls_by_name.named("eval"):
            if isinstance(call.func, ast.Attribute) and not _called(call, module, runs):
                found |= runs.models(call.func.value, module, {})
    return frozenset(c.call for c in found)


def _run_out_of_sight(study: Study) -> frozenset[ast.AST]:
    """The calls that make the models which functions outside the project are given to run, and
    those of files that are not among the modules under analysis."""
    runs, known, read = Runs(study), study.cache(_runs), set(study.project.modules)
    found: set[Constructor] = set()
    for module in study.project.modules:
        for call in module.table.calls:
            if call in known or not any(map(access_path, given_arguments(call))):
                continue
            quiet = is_quiet(call)
            if quiet and not (study.project.library.joined and runs.given(call, module, {})):
                continue  # as most are
            for callee in study.values(call.func, module):
                if isinstance(callee, (External, Unknown)) and not quiet:
                    found |= runs.outside(call, callee, module, {})
                elif isinstance(callee, Function) and callee.module not in read:
                    found |= runs.inside(call, callee, module)
                elif isinstance(callee, Class) and callee.module not in read:
                    found |= runs.given(call, module, {})  # which it may keep, and run later
    return frozenset(c.call for c in found)
