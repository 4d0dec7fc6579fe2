"""Whether an optimizer's learning rate is scheduled, and its groups so have ``initial_lr``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Unknown, Values
from fsdp_migrate.planning.context import Study

TORCHS = "torch.optim.lr_scheduler."
WORD = "chedule"  # transformers.get_scheduler, diffusers.optimization.get_cosine_schedule...
# What some schedulers add to an optimizer's groups beside ``initial_lr``.
ADDED = {
    "OneCycleLR": ("max_lr", "min_lr", "max_momentum", "base_momentum"),
    "SWALR": ("swa_lr",),
}


def settings_beside(study: Study) -> list[str]:
    """What the schedulers of a project may add to groups beside ``initial_lr``."""
    return [
        setting
        for scheduler, settings in ADDED.items()
        if study.project.mentions(scheduler)
        for setting in settings
    ]


def is_scheduled(optimizer: ast.expr, module: Module, study: Study) -> bool | None:
    """Whether a scheduler is made of an optimizer; None where it may be."""
    if not study.cache(_speaks_of_schedulers):
        return False
    made = study.values(optimizer, module)
    if _unknown(made) or _only_tests_give(made, module):
        return None
    answer: bool | None = False
    for call, other in study.cache(_scheduler_calls):
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        if any(not study.values(each, other).isdisjoint(made) for each in given):
            return True
        of_torch = any(n.startswith(TORCHS) for n in study.external(call.func, other))
        if of_torch and _unknown(study.values(given[0], other)):
            answer = None
    return answer


def _only_tests_give(made: Values, module: Module) -> bool:
    """Whether what is known of a value is what tests give: the program has another."""
    return not module.is_of_tests and all(value.module.is_of_tests for value in made)


def _unknown(values: Values) -> bool:
    return not values or any(isinstance(value, Unknown) for value in values)


def _speaks_of_schedulers(study: Study) -> bool:
    """Whether some file may make a scheduler of torch's, or of a library that makes one."""
    modules = study.project.modules
    return any(
        m.mentions("lr_scheduler", "LRScheduler", "initial_lr", "SWALR") for m in modules
    ) or any(True for _ in _libraries_functions(study))


def _libraries_functions(study: Study) -> Iterator[str]:
    """The functions of libraries that are imported and speak of schedules."""
    for module in study.project.modules:
        if module.mentions(WORD):
            for binding in module.table.imports:
                outside = study.project.resolve(binding.qualified, module) is None
                if WORD in binding.qualified and outside:
                    yield binding.qualified


def _scheduler_calls(study: Study) -> list[tuple[ast.Call, Module]]:
    """The calls that make a scheduler, by their names or by where what is called comes from."""
    return [
        (call, module)
        for module in study.project.modules
        if module.mentions("lr_scheduler", "LRScheduler", "SWALR", WORD)
        for call in module.table.calls
        if (call.args or call.keywords) and is_scheduler(call, module, study)
    ]


def is_scheduler(call: ast.Call, module: Module, study: Study) -> bool:
    if WORD in ast.unparse(call.func):
        return True
    return any(
        WORD in name or name.endswith(".SWALR") for name in study.external(call.func, module)
    )
