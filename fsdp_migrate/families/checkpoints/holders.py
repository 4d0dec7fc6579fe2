"""Modules that are not sharded themselves and hold parts that are.

FSDP1's parts answer for themselves, with whole tensors by default, whoever asks the module around
them for its state. FSDP2's give their shards, and what saves those says nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Display
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside, taken_out
from fsdp_migrate.fsdp1 import model_attributes, model_values
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study

METHODS = frozenset({"state_dict", "load_state_dict"})
SAVING = "save_pretrained"  # of a part, which asks itself


def find_calls_on_holders(study: Study, module: Module) -> Iterator[Site]:
    """Sites for states that are asked of modules with sharded parts.

    ``trainer.state_dict()`` is one, and so is ``save(trainer)`` of a library that calls it.
    """
    yield from find_functions_asking(study, module)
    for attribute in module.table.attributes_by_name.of({*METHODS, SAVING}):
        if not isinstance(attribute.ctx, ast.Load):
            continue
        if model_attributes.has_foreign_keyword(attribute, module):
            continue  # a method of the class's own, whose code has sites of its own
        find = taken_out if attribute.attr == SAVING else sharded_inside
        if not find(attribute.value, module, study):
            continue
        if any(isinstance(v, Display) for v in study.values(attribute.value, module)):
            continue  # a list has no state: what is asked is something else of the same name
        if model_values.is_taken_for_model(attribute.value, module, study.tracer):
            continue  # a site already
        parent = module.table.parents[attribute]
        called = isinstance(parent, ast.Call) and parent.func is attribute
        node = parent if called and isinstance(parent, ast.Call) else attribute
        yield Site(Construct.of_model(attribute.attr), module, node, attribute, attribute.value)


def find_functions_asking(study: Study, module: Module) -> Iterator[Site]:
    """Sites for functions of other libraries that ask sharded models, or parts, for their state."""
    return model_attributes.state_functions(
        study.tracer, module, lambda node: bool(sharded_inside(node, module, study))
    )
