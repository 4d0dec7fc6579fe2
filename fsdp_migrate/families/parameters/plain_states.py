"""Plain tensors that an optimizer of the project's own makes of a parameter's shape.

``state["row"] = torch.zeros(p.shape[:-1])``: FSDP1's pieces were plain tensors as well. What comes
of a gradient is a DTensor now, and changing the one in place by the other fails, at the first step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_owners import OF_SHARDED, models_of_optimizer
from fsdp_migrate.families.parameters.stepped_parameters import own_optimizer
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments
from fsdp_migrate.syntax.trees import walk

PLAIN = Construct.parse("plain tensor of a parameter's shape")
MAKING = frozenset({"empty", "full", "ones", "zeros"})
GRADIENT = "grad"


def find_plain_states(study: Study, module: Module) -> Iterator[Site]:
    """Sites for what a class of optimizers that has sharded parameters makes of their shapes."""
    if not module.mentions("Optimizer") and not module.mentions("optim"):
        return
    for call in module.table.calls_by_name.of(MAKING):
        if not any(_is_shape(each, module) for each in given_arguments(call)):
            continue
        optimizer = own_optimizer(call, module, study)
        if optimizer is None or not _reads_gradients(call, module):
            continue
        names = study.external(call.func, module)
        made = any(n.startswith("torch.") for n in names)
        if made and models_of_optimizer(optimizer, study, module):
            yield Site(PLAIN, module, call, call, optimizer)


def _is_shape(node: ast.expr, module: Module) -> bool:
    """Whether an argument is a tensor's shape, a part of it, or a name for either."""
    if _has_shape(node):
        return True
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        return False  # a number
    used = {n.id for n in walk(node) if isinstance(n, ast.Name)}
    function = enclosing_function(module, node)
    return function is not None and any(
        isinstance(each, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id in used for t in each.targets)
        and _has_shape(each.value)
        for each in walk(function)
    )


def _has_shape(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="shape") | ast.Call(func=ast.Attribute(attr="size"), args=[]):
            return True
        case ast.Subscript(value=owner, slice=ast.Slice()):
            return _has_shape(owner)
    return False


def _reads_gradients(call: ast.Call, module: Module) -> bool:
    """Whether the function takes gradients as they are: not this rank's part of them."""
    function = enclosing_function(module, call)
    words = {n.attr for n in walk(function) if isinstance(n, ast.Attribute)} if function else set()
    return GRADIENT in words and words.isdisjoint(OF_SHARDED)
