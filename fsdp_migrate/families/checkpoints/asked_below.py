"""States that functions ask for which a context calls, and of which no code there tells the kind.

``with FSDP.state_dict_type(model, FULL): save(model)`` beside ``with FSDP.state_dict_type(model,
SHARDED): save(model)``: ``save`` asks for either.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.checkpoints import settings_in_force, state_dict_settings
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import first_argument

OF_MODEL = frozenset({"state_dict", "load_state_dict"})
CONVERTING = "optim_state_dict_to_load"
MOST = 100  # functions of the project that are looked into


def is_asked_below(
    block: list[ast.stmt], setting: state_dict_settings.Setting, module: Module, study: Study
) -> bool:
    """Whether what a block calls asks for a state of a kind that only its callers tell.

    Args:
        setting: what the context of the block sets. A state that is converted for an optimizer is
            the same in any, unless it is rank 0's.
    """
    names = {"optim_state_dict", *([CONVERTING] if setting.optim_rank0_only else [])}
    seen: set[ast.AST] = set()
    waiting: list[tuple[ast.AST, Module]] = [(statement, module) for statement in block]
    for node, where in waiting:
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            if node not in block and _is_unsettled(call, names, where, study):
                return True
            for value in study.values(call.func, where):
                if isinstance(value, Function) and value.node not in seen and len(seen) < MOST:
                    seen.add(value.node)
                    waiting.append((value.node, value.module))
    return False


def _is_unsettled(call: ast.Call, names: set[str], module: Module, study: Study) -> bool:
    """Whether a call asks for a state, or loads one, in several contexts or outside of one."""
    models = _asked(call, names, module, study)
    return bool(models) and bool(settings_in_force.setting_at(call, module, models, study).problem)


def _asked(call: ast.Call, names: set[str], module: Module, study: Study) -> frozenset[Constructor]:
    """The models of which a call asks for a state, or their optimizers, by one of these names."""
    match call.func:
        case ast.Attribute(value=subject, attr=name) if name in OF_MODEL:
            return study.models(subject, module).constructors
        case ast.Attribute(attr=name) if name in names:
            if state_dict_settings.is_static_call(call, name, module, study):
                return state_dict_settings.models_concerned(
                    first_argument(call, "model"), module, study
                )
    return frozenset()
