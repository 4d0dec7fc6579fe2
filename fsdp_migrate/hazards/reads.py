"""Numbers that are read of a DTensor which still waits for the other ranks' part."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from packaging.version import Version

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Unknown
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.hazards import everywhere
from fsdp_migrate.hazards.norms import is_meant, may_be_reduced, may_offload
from fsdp_migrate.hazards.parameters import model_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, ReplaceExpression, code
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.scopes import Kind

READING = frozenset({"item", "float"})
# What makes one number of a tensor; of a sharded one, each rank's until it is reduced.
REDUCTIONS = frozenset({"norm", "vector_norm", "sum", "mean", "max", "min", "amax", "amin"})
# What keeps it a tensor of the same shards.
ELEMENTWISE = frozenset({"abs", "pow", "square", "float", "double", "detach", "clone", "data"})
KEEPING = frozenset({"detach", "clone", "data"})  # of what is read, too
GRADIENT = "grad"
CLIPPING = "torch.nn.utils.clip_grad_norm_"
REDUCED_SINCE = Version("2.13")  # measured: what clipping gives is reduced, but for infinite norms


class Read(NamedTuple):
    """A number of one rank that stands for all of them."""

    node: ast.expr
    is_sure: bool  # whatever its model may be, and with each torch
    edits: tuple[Edit, ...]


def find_reads(study: Study, module: Module) -> Iterator[Read]:
    """``p.grad.norm().item()`` of the parameters of sharded models, and ``float()`` of the like;
    what ``clip_grad_norm_`` gives, where torch leaves that to be reduced."""
    for read in module.table.calls_by_name.of(READING):
        tensor = _asked(read)
        if tensor is None or _is_for_one_rank(read, module):
            continue
        made = _bound(tensor, module)
        found = _of_parameter(made, module) or _of_clipping(made, study, module)
        if found is None or may_be_reduced(read, module, study):
            continue
        model, always = found
        values = study.values(model, module)
        known = fully_sharded.sharded(study)
        sharded = [value for value in values if value in known]
        unknown = all(isinstance(value, Unknown) for value in values)
        if not (sharded or unknown):
            continue
        sure = always and bool(sharded) and len(sharded) == len(values)
        plain = sure and not any(may_offload(s.call) for value in sharded for s in known[value])
        yield Read(read, sure, _whole(tensor, read, module, study) if plain else ())


def _of_parameter(made: ast.expr, module: Module) -> tuple[ast.expr, bool] | None:
    """The model of whose parameter, or gradient, one number is made, with each torch."""
    parameter = _parameter(made)
    model = model_of(parameter, module) if parameter is not None else None
    return None if model is None else (model, True)


def _of_clipping(made: ast.expr, study: Study, module: Module) -> tuple[ast.expr, bool] | None:
    """The model whose gradients are clipped, and whether each torch leaves their norm so."""
    match made:
        case ast.Call(
            args=[ast.Call(func=ast.Attribute(value=model, attr="parameters"), args=[]), *others],
            keywords=keywords,
        ) if study.external(made.func, module) == {CLIPPING}:
            kinds = [*others[1:2], *(k.value for k in keywords if k.arg == "norm_type")]
            infinite = any("inf" in ast.unparse(kind) for kind in kinds)
            if infinite or study.target < REDUCED_SINCE:
                return model, infinite
    return None


def _asked(call: ast.Call) -> ast.expr | None:
    """``x`` of ``x.item()`` and ``float(x)``."""
    match call:
        case ast.Call(func=ast.Attribute(value=tensor, attr="item"), args=[], keywords=[]):
            return tensor
        case ast.Call(func=ast.Name(id="float"), args=[tensor], keywords=[]):
            return tensor
    return None


def _bound(tensor: ast.expr, module: Module) -> ast.expr:
    """What a name of the function is bound to, if once, and to None elsewhere."""
    if not isinstance(tensor, ast.Name):
        return tensor
    scope = module.table.scope_of(tensor)
    bindings = [b for b in scope.bindings.get(tensor.id, []) if not _is_none(b.value)]
    if len(bindings) == 1 and bindings[0].kind is Kind.ASSIGN and not bindings[0].unpack:
        return bindings[0].value or tensor
    return tensor


def _is_none(value: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _parameter(node: ast.expr) -> ast.expr | None:
    """The variable ``p`` of ``p.grad.data.norm(2)``, where one number is made of all elements."""
    is_reduced = False
    while True:
        match node:
            case ast.Name():
                return node if is_reduced else None
            case ast.Call(func=ast.Attribute(value=ast.Name(id="torch")) as function, args=[x, *_]):
                name, node = function.attr, x
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Attribute(value=ast.Name(id="torch"), attr="linalg")
                ) as function,
                args=[x, *_],
            ):
                name, node = function.attr, x
            case ast.Call(func=ast.Attribute(value=inner, attr=name)):
                node = inner
            case ast.Attribute(value=inner, attr=name):
                node = inner
            case _:
                return None
        if name in REDUCTIONS:
            is_reduced = True
        elif name == GRADIENT:
            return node if is_reduced and isinstance(node, ast.Name) else None
        elif name not in (ELEMENTWISE if is_reduced else KEEPING):
            return None  # what is computed with a norm, DTensor reduces first


def _is_for_one_rank(read: ast.expr, module: Module) -> bool:
    """Whether names say that one rank's number is meant."""
    statement = module.table.statement(read)
    match statement:
        case ast.Assign(targets=targets):
            return any(map(is_meant, targets))
        case ast.AugAssign(target=target):
            return is_meant(target)
    return False


def _whole(tensor: ast.expr, read: ast.expr, module: Module, study: Study) -> tuple[Edit, ...]:
    """``full_tensor()`` of what is read, where all ranks get there."""
    if not everywhere.is_run_by_all(read, module, study, names_in(tensor)):
        return ()
    return (ReplaceExpression(module, tensor, code("{t}.full_tensor()", t=tensor)),)
