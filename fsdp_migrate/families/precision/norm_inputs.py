"""Where BatchNorm is given fp32 although the layers around it compute in a lower precision.

FSDP1 handed on the dtype of its input. A policy of FSDP2 has one ``output_dtype`` for all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis import reaching_bindings
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.wrapping import model_contents
from fsdp_migrate.planning.context import Study

_FULL = frozenset({"torch.float32", "torch.float"})
_CASTS = frozenset({"bfloat16", "half", "to", "type", "type_as"})


def in_full_precision(
    model: ast.expr, module: Module, study: Study
) -> Iterator[tuple[Module, ast.Call]]:
    """Calls of BatchNorm layers with fp32 whose results stay fp32, in the classes of a model.

    Where a part of the model cannot be followed, all of the project is looked at.
    """
    found = model_contents.contents(model, module, study)
    if not found.complete:
        yield from study.cache(_anywhere)
        return
    for cls in found.classes:
        yield from _inside(cls.node, cls.module, study)


def _anywhere(study: Study) -> list[tuple[Module, ast.Call]]:
    return [each for m in study.project.modules for each in _inside(m.table.tree, m, study)]


def _inside(body: ast.AST, where: Module, study: Study) -> Iterator[tuple[Module, ast.Call]]:
    for call in where.table.calls_in(body):
        if (
            isinstance(call.func, ast.Attribute)
            and len(call.args) == 1
            and _is_full(call.args[0], where)
            and not _is_cast_back(call, where)
            and _is_batch_norm(call.func, where, study)
        ):
            yield where, call


def _is_full(node: ast.expr, module: Module) -> bool:
    if isinstance(node, ast.Name):
        given = [binding.value for binding in reaching_bindings.bindings(node, module)]
        return any(isinstance(value, ast.Call) and _is_full(value, module) for value in given)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "float":
        return not node.args
    arguments = [*node.args, *(each.value for each in node.keywords)]
    return node.func.attr in {"to", "type"} and any(ast.unparse(a) in _FULL for a in arguments)


def _is_cast_back(call: ast.Call, module: Module) -> bool:
    """Whether what a layer returns is cast at once: ``norm(x.float()).to(x.dtype)``."""
    method = module.table.parents.get(call)
    around = module.table.parents.get(method) if isinstance(method, ast.Attribute) else None
    return (
        isinstance(method, ast.Attribute)
        and isinstance(around, ast.Call)
        and method.attr in _CASTS
        and not _is_full(around, module)
    )


def _is_batch_norm(node: ast.expr, module: Module, study: Study) -> bool:
    for value in study.values(node, module):
        match value:
            case Made(callee=Class() as own):
                names = frozenset(study.tracer.external_bases(own))
            case Made():
                names = frozenset({value.made_by})
            case _:
                continue
        if any("BatchNorm" in name for name in names):
            return True
    return False
