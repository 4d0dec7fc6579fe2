"""Checkpoints that a program wrote itself: an ``autograd.Function`` that runs what it kept again.

Such a one is marked where what it runs may run twice before its backward, and where it is out of
sight what it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS

FUNCTION = "torch.autograd.Function"
DEEP = 3  # functions that hand on what is run
LOOPS = (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)
Run = tuple[ast.expr, ast.Call, Module]


def own_checkpoint(call: ast.Call, module: Module, study: Study) -> ast.ClassDef | None:
    """The class of a checkpoint, where a backward stands in that of an ``autograd.Function``, of
    what a function gave that it kept and has run again (``ctx.run(...)``), as torch's reentrant
    checkpoint does."""
    method = enclosing_function(module, call)
    cls = module.table.parents[method] if method is not None else None
    if not isinstance(method, ast.FunctionDef) or not isinstance(cls, ast.ClassDef):
        return None
    if method.name != "backward" or not method.args.args:
        return None
    calls = [node.func for node in ast.walk(method) if isinstance(node, ast.Call)]
    kept = {f"{method.args.args[0].arg}.{last_name(called)}" for called in calls}
    found = (
        any(FUNCTION in study.external(base, module) for base in cls.bases)
        and any(last_name(called) == "enable_grad" for called in calls)
        and any(access_path(called) in kept for called in calls)
    )
    return cls if found else None


def runs_each_once(cls: ast.ClassDef, module: Module, study: Study) -> bool:
    """Whether everything that a checkpoint is seen to run is a part of ``self`` in a module's
    method, each at one place and in no loop, so that it runs as often as the module does."""
    runs = list(_runs(cls, module, study))
    places: set[tuple[ast.AST | None, str]] = set()
    for run, call, where in runs:
        path = access_path(run)
        function = enclosing_function(where, call)
        holder = where.table.parents.get(function) if function is not None else None
        if path is None or not path.startswith("self.") or not isinstance(holder, ast.ClassDef):
            return False
        looped = any(isinstance(parent, LOOPS) for parent in where.table.ancestors(call))
        if looped or (holder, path) in places:
            return False
        places.add((holder, path))
    return bool(runs)


def _runs(cls: ast.ClassDef, module: Module, study: Study) -> Iterator[Run]:
    """What a checkpoint is given to run: ``self.block`` of ``Checkpoint.apply(self.block, x)``."""
    for where in study.project.modules:
        for call in where.table.calls_by_name.named("apply"):
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            if owner is None or not call.args:
                continue
            if any(isinstance(v, Class) and v.node is cls for v in study.values(owner, where)):
                yield from _handed_on(call.args[0], call, where, study, DEEP)


def _handed_on(
    run: ast.expr, call: ast.Call, module: Module, study: Study, depth: int
) -> Iterator[Run]:
    """What is run where a function hands it on that others call: ``checkpoint(self.block, x)``."""
    given = study.defined_by(run, module) if isinstance(run, ast.Name) and depth else ()
    parameters = [d.node for d in given if d.kind is Kind.PARAMETER]
    if not parameters:
        yield run, call, module
    for parameter in parameters:
        function = next(p for p in module.table.ancestors(parameter) if isinstance(p, FUNCTIONS))
        callers = study.tracer.callers(function, module)
        if not callers:
            yield run, call, module
        for caller in callers:
            argument = caller.argument(function, getattr(parameter, "arg", ""))
            if argument is None:
                yield run, call, module
            else:
                yield from _handed_on(argument, caller.call, caller.module, study, depth - 1)
