"""Parameters that are made views of memory that is kept: ``p.data = self.flat[a:b].view_as(p)``.

What is written to that memory later, by the other ranks maybe, is in the parameters as well. A copy
takes the two apart. A sharded parameter has memory of its own in any case; one of a part that is
not sharded has to stay a view.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

DEEPEST = 4  # names that lead to one another
NARROWING = frozenset({"narrow", "as_strided", "select"})
VIEWING = NARROWING | {
    "view",
    "view_as",
    "reshape",
    "reshape_as",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "expand",
    "expand_as",
    "t",
    "transpose",
    "permute",
    "detach",
}
SPLITTING = frozenset(
    {"split", "split_with_sizes", "chunk", "tensor_split", "unbind", "_unflatten_dense_tensors"}
)
REVIEW = (
    "these parameters were made views of memory that is kept, and are copies now: keep the "
    "assignment for those that are not sharded; those that are have memory of their own"
)


def is_kept_view(
    node: ast.expr, study: Study, module: Module, narrowed: bool = False, depth: int = DEEPEST
) -> bool:
    """Whether an expression is a piece of a tensor that something holds beside the parameter."""
    base = node
    while True:
        match base:
            case ast.Subscript(value=base, slice=ast.Slice() | ast.Tuple()):
                narrowed = True
            case ast.Call(func=ast.Attribute(value=base, attr=attr)) if attr in VIEWING:
                narrowed = narrowed or attr in NARROWING
            case ast.Attribute(value=base, attr="data"):
                pass
            case _:
                break
    if narrowed and _is_kept(base, module):
        return True
    if not isinstance(base, ast.Name) or not depth:
        return False
    for definition in study.defined_by(base, module):
        value = definition.value
        if value is None or (definition.unpack and definition.kind is Kind.ASSIGN):
            continue
        if definition.kind is Kind.ELEMENT and _splits_what_is_kept(value, module):
            return True
        if definition.kind is Kind.ASSIGN and is_kept_view(
            value, study, module, narrowed, depth - 1
        ):
            return True
    return False


def _splits_what_is_kept(node: ast.expr, module: Module) -> bool:
    """``zip(parameters, self.flat.split(sizes))``, ``torch.split(self.flat, sizes)``."""
    for call in walk(node):
        if isinstance(call, ast.Call) and last_name(call.func) in SPLITTING:
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if any(each is not None and _is_kept(each, module) for each in (owner, *call.args[:1])):
                return True
    return False


def _is_kept(node: ast.expr, module: Module) -> bool:
    """An attribute, or a variable that its function stores in one."""
    if isinstance(node, ast.Attribute):
        return node.attr not in {"data", "grad"} and node.attr not in SPLITTING
    if not isinstance(node, ast.Name):
        return False
    here = enclosing_function(module, node)
    for stored in module.table.stored_attributes:
        match module.table.parents[stored]:
            case ast.Assign(value=ast.Name(id=name)) if name == node.id:
                if enclosing_function(module, stored) is here:
                    return True
    return False
