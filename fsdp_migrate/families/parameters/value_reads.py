"""What is read off the values of a parameter or gradient: ``p``, then ``(p - q).abs()``, then
``(p - q).abs().max().item()``.

What works element by element is followed to where a number, an answer or a list of numbers comes
of it. That depends on which elements this rank has, and whether it has all of them.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.families.training_loop.listed_parts import PARTS, listed
from fsdp_migrate.families.training_loop.sharded_alike import ELEMENTWISE
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.trees import walk

# Answers of all elements, beside those that reductions of single parameters are known by.
OF_ALL = reductions.REDUCING | {
    *("all", "prod", "nansum", "nanmean", "logsumexp", "aminmax", "trace", "unique", "dist"),
    *("topk", "kthvalue", "histc", "histogram", "dot", "vdot", "inner", "cosine_similarity"),
    *("allclose", "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div"),
}
# Of two tensors, which have to be of one kind.
OF_TWO = frozenset(
    {"equal", "allclose", "dist", "dot", "vdot", "inner", "cosine_similarity", "kl_div"}
    | {"mse_loss", "l1_loss", "smooth_l1_loss"}
)
TORCH = ("torch.", "torch.linalg.", "torch.nn.functional.")
CHECKS = frozenset({"isnan", "isinf", "isfinite"})  # whether one of them is not, every rank finds
TRANSPOSED = frozenset({"T", "mT"})
OUTSIDE = frozenset({"numpy", "tolist"})  # what no DTensor has
# What makes an array of what it is given.
ARRAYS = frozenset({"add_histogram", "Histogram", "array", "asarray", "histplot"})


class Read(Enum):
    """What comes of the values."""

    NUMBER = "a tensor that gives the whole number when something is computed from it"
    OWN = "a number of this rank's part"
    VALUES = "numbers of Python's or numpy's, which no DTensor gives"
    EQUAL = "whether this rank's part is what another one is"


@dataclass(frozen=True, eq=False)
class Found:
    """A place where values are read, and the parameter that they are of, as it is written there."""

    node: ast.expr
    base: ast.expr
    read: Read
    is_mixed: bool = False  # with another tensor's, element by element


def find_reads(
    names: Collection[str], region: Sequence[ast.AST], study: Study, module: Module
) -> list[Found]:
    """What a loop reads of what its variables hold."""
    held = {*names, *listed(names, region)}
    nodes = [node for part in region for node in walk(part)]
    found: dict[ast.expr, Found] = {}
    before = -1
    while before < len(held):  # until no other variable gets the values
        before = len(held)
        for node in nodes:
            if isinstance(node, ast.Name) and node.id in held and isinstance(node.ctx, ast.Load):
                for each in reads_of(node, study, module, names):
                    if isinstance(each, str):
                        held.add(each)
                    elif each.is_mixed or each.node not in found:
                        found[each.node] = each
    return list(found.values())


def needs_shards(
    names: Collection[str], region: Sequence[ast.AST], study: Study, module: Module
) -> bool:
    """Whether a loop combines parameters with others, or adds their numbers up over the ranks: all
    of them have to be sharded there, or none."""
    if any(each.is_mixed for each in find_reads(names, region, study, module)):
        return True
    return any(
        reductions.is_reduced(reduction.node, study, module)
        for reduction in reductions.find_reductions(names, region, study, module)
        if any("grad" not in ast.unparse(base) for base in reduction.bases)
    )


def reads_of(
    node: ast.expr, study: Study, module: Module, names: Collection[str] = ()
) -> Iterator[Found | str]:
    """What comes of the values of an expression, or the variable that gets them.

    Args:
        names: those of other parameters.
    """
    parents = module.table.parents
    base, mixed, checked = node, False, False
    while True:
        parent = parents[node]
        match parent:
            case ast.Attribute(attr=attr) if attr in PARTS | TRANSPOSED:
                base = parent if base is node else base
                node = parent
                continue
            case ast.Attribute(attr=name):
                call = parents[parent]
                if not isinstance(call, ast.Call) or call.func is not parent:
                    return
            case ast.Subscript(slice=ast.Constant(value=str())):
                return  # of a dictionary
            case ast.Subscript(value=value, ctx=ast.Load()) if value is node:
                if not _is_changed(parent, module):
                    yield Found(parent, base, Read.NUMBER, mixed)
                return
            case ast.Call(func=function) if node in given_arguments(parent) and (
                last_name(function) in ARRAYS
            ):
                yield Found(node, base, Read.VALUES, mixed)
                return
            case ast.Call(func=function) if node in parent.args:
                call, name = parent, last_name(function)
                known = OF_ALL | OF_TWO | ELEMENTWISE
                if name in known and not any(
                    q == f"{owner}{name}"
                    for q in study.external(function, module)
                    for owner in TORCH
                ):
                    return
            case ast.BinOp(left=left, right=right):
                mixed = mixed or _is_tensor(right if left is node else left, names)
                node = parent
                continue
            case ast.Compare(ops=[ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]):
                return
            case ast.UnaryOp(op=ast.USub()) | ast.Compare():
                node = parent
                continue
            case ast.Assign(targets=[ast.Name(id=given)], value=value) if value is node:
                yield given
                return
            case _:
                return
        if name in OUTSIDE:
            yield Found(call, base, Read.VALUES, mixed)
            return
        if name == "equal":
            yield Found(call, base, Read.EQUAL, is_mixed=True)
            return
        if name in OF_ALL:
            mixed = mixed or name in OF_TWO
            if not _is_along_rows(call, node, name):
                yield from _result(call, base, name, mixed, checked, module)
            return
        if name not in ELEMENTWISE:
            return
        checked = checked or name in CHECKS
        node = call


def _is_changed(items: ast.expr, module: Module) -> bool:
    """``p[0].zero_()``, which reads nothing."""
    method = module.table.parents[items]
    return isinstance(method, ast.Attribute) and method.attr.endswith("_")


def _is_tensor(other: ast.expr, names: Collection[str]) -> bool:
    """Whether the other side of an operation is another variable of the loop, or an item."""
    while isinstance(other, (ast.Attribute, ast.Call)):
        other = other.func if isinstance(other, ast.Call) else other.value
    return isinstance(other, ast.Subscript) or (isinstance(other, ast.Name) and other.id in names)


def _is_along_rows(call: ast.Call, values: ast.expr, name: str) -> bool:
    """Whether a call gives a number for each row or column."""
    settings = [a for a in call.args if a is not values]
    if any(k.arg in {"dim", "axis"} for k in call.keywords):
        return True
    return name in reductions.EXTREMES | reductions.TOTALS | {"all", "prod"} and bool(settings)


def _result(
    call: ast.Call, base: ast.expr, name: str, mixed: bool, checked: bool, module: Module
) -> Iterator[Found]:
    if not reductions.is_number(call, module):
        yield Found(call, base, Read.NUMBER, mixed)
    elif not (checked and name in {"any", "all"}):
        yield Found(call, base, Read.OWN, mixed)
