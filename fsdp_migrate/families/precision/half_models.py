"""Models whose own parameters are float16, and so their gradients: ``net.half()`` before a wrap.

``ShardedGradScaler`` took such gradients; ``torch.amp.GradScaler`` refuses them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External
from fsdp_migrate.families.wrapping.wrapped_modules import wrapped_by
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments

HALF = frozenset({"torch.float16", "torch.half"})
CASTS = frozenset({"half", "to"})
DTYPES = frozenset({"dtype", "torch_dtype"})


def may_be_half(constructors: Iterable[Constructor], study: Study) -> bool:
    """Whether some model is cast to float16, or made in it, before it is wrapped."""
    if not study.project.mentions("half", "float16"):
        return False
    wrapped = [each for c in constructors for each in wrapped_by(c, study)]
    return any(_is_made_half(*each, study) or _is_cast(*each, study) for each in wrapped)


def _is_made_half(node: ast.expr, module: Module, study: Study) -> bool:
    return any(
        keyword.arg in DTYPES and _is_half(keyword.value, value.module, study)
        for value in study.values(node, module)
        if isinstance(value.node, ast.Call)
        for keyword in value.node.keywords
    )


def _is_cast(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether a call casts what is wrapped: by the same name in its function, or wherever it is
    the same object."""
    path, function = access_path(node), enclosing_function(module, node)
    made = {value.node for value in study.values(node, module)}
    for receiver, call, where in study.cache(_casts):
        is_here = where is module and enclosing_function(where, call) is function
        if is_here and access_path(receiver) == path:
            return True
        if call in made or made & {value.node for value in study.values(receiver, where)}:
            return True
    return False


def _casts(study: Study) -> list[tuple[ast.expr, ast.Call, Module]]:
    """The calls that cast something to float16, with what they cast."""
    return [
        (call.func.value, call, where)
        for where in study.project.modules
        if where.mentions("half", "float16")
        for call in where.table.calls_by_name.of(CASTS)
        if isinstance(call.func, ast.Attribute) and _is_to_half(call, where, study)
    ]


def _is_to_half(call: ast.Call, module: Module, study: Study) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr == "half":
        return not given_arguments(call)
    return any(_is_half(each, module, study) for each in given_arguments(call))


def _is_half(node: ast.expr, module: Module, study: Study) -> bool:
    found = study.values(node, module)
    return any(isinstance(value, External) and value.name in HALF for value in found)
