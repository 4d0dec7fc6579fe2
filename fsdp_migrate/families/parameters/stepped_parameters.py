"""Parameters that an optimizer's own methods get from other functions than a loop over its groups.

``for group, p in self.pairs(): p.grad ...`` in a class of optimizers: whatever ``pairs`` does, what
has its gradient read in an optimizer is one of the parameters that the optimizer was given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_loops import (
    AROUND,
    READ,
    loop_over,
    uses_of_variables,
)
from fsdp_migrate.families.parameters.parameter_numbers import find_numbers
from fsdp_migrate.families.parameters.parameter_owners import models_of_optimizer
from fsdp_migrate.families.training_loop import early_optimizers
from fsdp_migrate.families.wrapping import enclosing_models
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import walk


def find_stepped(study: Study, module: Module) -> Iterator[Site]:
    """Sites for what such loops compute of their parameters, or read off them."""
    if not module.mentions("grad"):
        return
    for call in module.table.calls:
        loop = None if last_name(call.func) in AROUND else loop_over(call, module)
        if loop is None:
            continue
        target, region, whole = loop
        names = {n for n in names_in(target) if _has_gradient(n, region)}
        optimizer = own_optimizer(call, module, study) if names else None
        if optimizer is None or not models_of_optimizer(optimizer, study, module):
            continue
        for node, construct in uses_of_variables(whole, names, region):
            if construct in READ:
                yield Site(construct, module, node, node, optimizer)
        yield from find_numbers(call, optimizer, study, module)


def _has_gradient(name: str, region: Sequence[ast.AST]) -> bool:
    """Whether ``name.grad`` is read."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "grad"
        and isinstance(node.value, ast.Name)
        and node.value.id == name
        for part in region
        for node in walk(part)
    )


def own_optimizer(node: ast.expr, module: Module, study: Study) -> ast.expr | None:
    """``self`` in a method of a class of optimizers, where ``node`` stands in one."""
    cls = enclosing_models.class_of(node, module)
    method = enclosing_function(module, node)
    if cls is None or not isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    own = [*method.args.posonlyargs, *method.args.args]
    if not own or not early_optimizers.is_optimizer(cls, study):
        return None
    return next(
        (n for n in walk(method) if isinstance(n, ast.Name) and n.id == own[0].arg),
        None,
    )
