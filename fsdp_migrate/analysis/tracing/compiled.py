"""What a compiled module has inside: ``torch.compile(model)._orig_mod`` is ``model``.

``torch.compile`` is looked through, so that the compiled module has the values of what is in it.
A model of FSDP1's hands out what the module in it has: ``FSDP(torch.compile(net))._orig_mod`` is
``net``, not the model.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.values import Frame, Made, Value
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.expressions import given_arguments

INSIDE = "_orig_mod"
# Functions that hand back their first argument, at once or when what they give is called.
COMPILING = frozenset({"torch.compile", "torch._dynamo.optimize"})


def inside(
    owner: ast.expr,
    module: Module,
    frame: Frame | None,
    tracer: Evaluator,
    index: ProjectIndex,
) -> list[Value] | None:
    """The values of ``owner._orig_mod``; None where it may be what an FSDP1 model has inside."""
    found = list(tracer.evaluate(owner, module, frame))
    models = [v for v in found if isinstance(v, Made) and fsdp1.canonical(v.made_by) == fsdp1.FSDP]
    compiled = set(_compiled(tracer, index)) if models else set()
    if not models or any(_has_compiled(model, compiled, tracer) for model in models):
        return None
    return found


def _compiled(tracer: Evaluator, index: ProjectIndex) -> Iterator[ast.AST]:
    """Where everything was made that the project compiles."""
    for call, module in index.calls_named("compile", "optimize"):
        if call.args and tracer.project.external(call.func, module) & COMPILING:
            yield from (value.node for value in tracer.evaluate(call.args[0], module))


def _has_compiled(model: Made, compiled: Collection[ast.AST], tracer: Evaluator) -> bool:
    """Whether a model was made of a module that is, or may be, compiled."""
    given = given_arguments(model.node) if isinstance(model.node, ast.Call) else []
    return any(
        value.node in compiled
        for each in given[:1]
        for value in tracer.evaluate(each, model.module, model.frame)
    )
