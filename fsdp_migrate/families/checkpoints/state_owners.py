"""What is asked for a state that is no sharded model itself, and has parameters of one.

A module that holds sharded parts, ``model.encoder`` of a sharded ``model``, or ``self`` in a method
that is called on it. FSDP1's units answered with whole tensors, whoever asked a module around them.
"""

from __future__ import annotations

import ast
import re

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_self
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.parameters.own_parameters import models_of_self
from fsdp_migrate.families.training_loop.part_forwards import is_made_of, is_no_module, owners
from fsdp_migrate.families.wrapping.own_names import wrapped_by_now
from fsdp_migrate.families.wrapping.sharded_parts import Held, is_loaded_with, sharded_parts
from fsdp_migrate.families.wrapping.stored_models import is_module
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.unfollowed import OTHER_OBJECTS
from fsdp_migrate.fsdp1.unwrapping import INNER
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor

STATES = frozenset({"state_dict", "load_state_dict"})
DEEP = 3  # names between a part and the model
NO_MODULE = re.compile(rf"{OTHER_OBJECTS.pattern}|token|process", re.I)


def sharded_inside(node: ast.expr, module: Module, study: Study) -> Held:
    """The constructors of what is sharded in a module that is no sharded model itself."""
    held = sharded_parts(node, module, study) or taken_out(node, module, study)
    held = held or Held(wrapped_by_now(node, module, study))
    met = frozenset(c for c in held.constructors if is_loaded_with(c, module, study))
    return Held(met, held.certain)


def taken_out(node: ast.expr, module: Module, study: Study) -> Held:
    """As :func:`sharded_inside`, of a part that is taken out of a sharded model."""
    if not study.constructors or study.traced(node, module):
        return Held()
    steps: list[ast.expr] = []
    for owner in owners(node, module, study, DEEP):
        if study.traced(owner, module):
            named = [name for each in steps if (name := _named(each)) is not None]
            if not set(named) - INNER or any(NO_MODULE.search(name) for name in named):
                return Held()
            known = not any(is_no_module(each, study) for each in steps)
            models = study.models(owner, module).constructors if known else frozenset()
            return Held(models, certain=True)
        steps.append(owner)
    return Held(of_self(node, module, study), certain=False)


def _named(step: ast.expr) -> str | None:
    """The name of a part, as it is written: ``head`` of ``model.head`` and ``getattr(model,
    "head")``; empty for one of a list, or one whose name is computed. None of anything else."""
    match step:
        case ast.Attribute(attr=name):
            return name
        case (
            ast.Call(func=ast.Name(id="getattr"), args=[_, key, *_])
            | ast.Call(func=ast.Attribute(attr="get_submodule"), args=[key])
        ):
            return str(key.value).rpartition(".")[2] if isinstance(key, ast.Constant) else ""
    return "" if isinstance(step, ast.Subscript) else None


def of_self(node: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """The models that ``self`` is, or is a part of, in a method of a class of modules."""
    method = enclosing_function(module, node)
    if not is_self(node, module) or not isinstance(method, ast.FunctionDef):
        return frozenset()
    owner = class_of_method(method, module)
    cls = Class(owner, module) if owner is not None else None
    if cls is None or not is_module(cls, study) or method.name in STATES:
        return frozenset()
    if any(_has_own_state(each) for each in study.tracer.lineage(cls)):
        return frozenset()
    found = set(models_of_self(node, module, study))
    for call, where in study.tracer.calls_named(method.name):
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        if receiver is not None and not is_self(receiver, where):
            models = taken_out(receiver, where, study).constructors
            found.update(each for each in models if is_made_of(each, cls, study))
    return frozenset(found)


def _has_own_state(cls: Class) -> bool:
    return any(isinstance(s, ast.FunctionDef) and s.name in STATES for s in cls.node.body)
