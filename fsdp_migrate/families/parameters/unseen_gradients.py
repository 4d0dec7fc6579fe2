"""Gradients under ``summon_full_params`` without ``with_grads=True``.

FSDP1 left this rank's pieces in ``p.grad`` there, and what was written to it stayed. The whole
parameters of ``full_params`` are others than the sharded ones, and have no gradients.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function, Made
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.trees import walk

DEEP = 3  # functions that functions call
DROPS = "zero_grad"
TOLD = (
    "without with_grads=True FSDP1 left this rank's pieces of the gradients in p.grad here, and "
    "dropped or changed them by what was written to it. Now p.grad is None here, and writing to it "
    "does nothing: give with_grads=True for whole ones, on all ranks, or do this outside of the "
    "block"
)


def are_met(
    statements: Sequence[ast.With | ast.AsyncWith],
    model: ast.expr,
    with_grads: ast.expr | None,
    site: Site,
    study: Study,
) -> bool:
    """Whether blocks in which parameters are whole ask for gradients that are not gathered."""
    given = study.literal(with_grads, site.module) if with_grads is not None else None
    if given is not None and given.value is True:
        return False
    table = site.module.table
    own = (s for s in statements if s in table.parents)
    seen: set[ast.AST] = set()
    return any(
        _asks(part, site.module, study, seen, DEEP, ast.unparse(model))
        for s in own
        for part in s.body
    )


def _asks(
    node: ast.AST, module: Module, study: Study, seen: set[ast.AST], depth: int, model: str = ""
) -> bool:
    """Whether code reads or writes gradients of parameters, or a function that it calls does."""
    seen.add(node)
    for each in walk(node):
        match each:
            case ast.Attribute(attr="grad", value=owner):
                if not study.external(each, module) and not _is_input(owner, module, study):
                    return True
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr == DROPS:
                if study.traced(owner, module) or ast.unparse(owner) == model:
                    return True
    calls = [n for n in walk(node) if isinstance(n, ast.Call)] if depth else []
    return any(
        _asks(function, where, study, seen, depth - 1)
        for call in calls
        for function, where in _called(call, module, study)
        if function not in seen
    )


def _is_input(owner: ast.expr, module: Module, study: Study) -> bool:
    """Whether something is certainly a tensor that a call makes, and no parameter."""
    values = study.values(owner, module)
    return bool(values) and all(
        isinstance(v, Made) and v.made_by.startswith("torch.") and "Param" not in v.made_by
        for v in values
    )


def _called(call: ast.Call, module: Module, study: Study) -> Iterator[tuple[ast.AST, Module]]:
    """The functions of the project that a call runs."""
    for value in study.values(call.func, module):
        if isinstance(value, Function):
            yield value.node, value.module
