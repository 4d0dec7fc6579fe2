"""What becomes of a state that is loaded."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints.snapshots import LOOPS
from fsdp_migrate.families.wrapping import offloading
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor


def is_read_again(state: ast.expr, load: ast.Call, module: Module) -> bool:
    """Whether the program may read a dictionary again which ``load`` fills with shards.

    ``saved["model"]`` is not read by what takes another constant key of ``saved``.
    """
    key: object = None
    match state:
        case ast.Call() | ast.Constant() | ast.Dict() | ast.DictComp():
            return False
        case ast.Subscript(value=of, slice=ast.Constant(value=key)):
            state = of
    if not isinstance(state, ast.Name):
        return True
    table = module.table
    scope = table.within[state].lookup(state.id)
    function = enclosing_function(module, load)
    if scope is None or scope is not table.scope_of(load):
        return True
    bindings = scope.bindings[state.id]
    if not all(isinstance(b.node, (ast.Assign, ast.AnnAssign)) for b in bindings):
        return True  # a caller's, or an import
    for loop in (n for n in table.ancestors(load) if isinstance(n, LOOPS)):
        if not any(loop in table.ancestors(b.node) for b in bindings):
            return True
    sources = [b.value for b in bindings if b.value is not None and not _is_part(b.value, state.id)]
    if any(is_read_again(each, load, module) for each in sources):
        return True
    return any(
        name.lineno > load.lineno and not _is_of_another_key(name, key, module)
        for name in table.names
        if name.id == state.id
        and isinstance(name.ctx, ast.Load)
        and enclosing_function(module, name) is function
    )


def _is_of_another_key(name: ast.Name, key: object, module: Module) -> bool:
    parent = module.table.parents[name]
    if key is None or not isinstance(parent, ast.Subscript):
        return False
    return isinstance(parent.slice, ast.Constant) and parent.slice.value != key


def _is_part(value: ast.expr, name: str) -> bool:
    """``saved = saved["model"]``."""
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(value))


def needs_support(
    load: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> bool:
    """Whether ``set_model_state_dict`` would not do: it wants all tensors on one device, and
    does not know names that ``torch.compile`` gave."""
    is_used = not isinstance(module.table.parents[load], ast.Expr)
    apart = any(offloading.may_offload(m, study) for m in models) or study.may_ignore(models)
    return is_used or apart or study.project.mentions("torch.compile")
