"""Gradients and parameters that are asked for while a forward has the root's gathered.

``loss.backward()``, then a forward without gradients, then ``clip_grad_norm_``: FSDP1 kept its
parameters as they were. FSDP2's ``model.parameters()`` are gathered tensors there, without the
gradients: a norm, ``zero_grad()`` or an optimizer would miss the root's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.parameters.parameter_changes import changes_in_place
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.training_loop.early_optimizers import named_like_an_optimizer
from fsdp_migrate.families.training_loop.gathered_roots import (
    may_stay_gathered,
    resharded_first,
)
from fsdp_migrate.families.training_loop.model_runs import Runs
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

RULE = "FSDP408"
GATHERED = Construct.parse("gathered gradients")
CLIPPING = frozenset({"clip_grad_norm_", "clip_grad_value_"})


def find_gathered_gradients(study: Study, module: Module) -> Iterator[Site]:
    """A site for every statement between a forward and its backward, or the next, that asks for
    the gradients or parameters of the model."""
    if not study.constructors:
        return
    runs = Runs(study)
    handled: set[ast.stmt] = set()
    for call in module.table.calls:
        model = _asked(call, module)
        statement = module.table.statement(call)
        if model is None or statement in handled or not study.traced(model, module):
            continue
        models = study.models(model, module).constructors
        if _makes_optimizer(call, module) and may_stay_gathered(models, study):
            continue  # FSDP403's business
        if not is_gathered(call, study, module) and _runs_last(statement, models, runs, module):
            handled.add(statement)
            yield Site(GATHERED, module, call, statement, model)


def _asked(call: ast.Call, module: Module) -> ast.expr | None:
    """The model whose gradients, or parameters for an optimizer, a call asks for."""
    method = call.func if isinstance(call.func, ast.Attribute) else None
    if method is None:
        return None
    if method.attr in {"zero_grad", "clip_grad_norm_"}:
        return method.value
    if method.attr not in METHODS:
        return None
    for parent in module.table.ancestors(call):
        if isinstance(parent, ast.Call) and last_name(parent.func) in CLIPPING:
            return method.value
        if isinstance(parent, (ast.For, ast.AsyncFor)) and call in set(ast.walk(parent.iter)):
            reads = any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in ast.walk(parent))
            changes = changes_in_place(names_in(parent.target), parent.body)  # reshards already
            return method.value if reads and not changes else None
        if isinstance(parent, ast.stmt):
            break
    return method.value if _makes_optimizer(call, module) else None


def _makes_optimizer(call: ast.Call, module: Module) -> bool:
    return any(
        isinstance(parent, ast.Call) and named_like_an_optimizer(parent)
        for parent in module.table.ancestors(call)
    )


def _runs_last(
    statement: ast.AST, models: frozenset[Constructor], runs: Runs, module: Module
) -> bool:
    """Whether, of forwards and backwards above a statement in its function, a forward is last."""
    for parent in module.table.ancestors(statement):
        block = block_of(parent, statement) if isinstance(statement, ast.stmt) else []
        position = next((i for i, each in enumerate(block) if each is statement), 0)
        for earlier in reversed(block[:position]):
            calls = [n for n in ast.walk(earlier) if isinstance(n, ast.Call)]
            if any(_runs_backward(call, runs, module) for call in calls):
                return False
            if any(runs.may_be(call, module, set(models)) for call in calls):
                return True
        if isinstance(parent, FUNCTIONS):
            return False
        statement = parent
    return False


def _runs_backward(call: ast.Call, runs: Runs, module: Module) -> bool:
    """Whether a call is of ``backward``, or of a function with one, or reshards."""
    if last_name(call.func) in {"backward", "reshard"}:
        return True
    functions = [v for v in runs.study.values(call.func, module) if isinstance(v, Function)]
    return any(
        isinstance(node, ast.Attribute) and node.attr == "backward"
        for function in functions
        for node in ast.walk(function.node)
    )


def decide_gathered(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors
    return resharded_first(site, [site.subject], study, RULE, models=models)
