"""Optimizers of models that are not sharded, as the branch beside them tells.

``if isinstance(model, FSDP): state = FSDP.optim_state_dict(model, optimizer)`` says whose optimizer
it is, so that ``else: state = optimizer.state_dict()`` is of a model that is none of FSDP1's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.conditions import leaves
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.trees import walk

ASKED = "optim_state_dict"  # a part of the names of all of FSDP1's functions for such states


def is_of_no_model(optimizer: ast.expr, module: Module, study: Study) -> bool:
    """Whether the other branch asks FSDP1 for the state of an optimizer and of a model that is
    sharded there alone."""
    path = access_path(optimizer)
    if path is None or not module.mentions(ASKED):
        return False
    return any(
        any(access_path(each) == path for each in given_arguments(call))
        and any(
            study.narrowing.is_told_by(branch.test, given, module)
            or _is_another(given, optimizer, branch, module, study)
            for given in given_arguments(call)
        )
        for branch, statements in _beside(optimizer, module)
        for statement in statements
        for call in walk(statement)
        if isinstance(call, ast.Call) and ASKED in last_name(call.func)
    )


def _is_another(
    model: ast.expr, optimizer: ast.expr, branch: ast.If, module: Module, study: Study
) -> bool:
    """Whether the test tells that what the other branch shards is another model beside the
    optimizer: ``if isinstance(model, OwnSharding): state = model.state_dict()``."""
    path = access_path(model)
    if path is None or not study.models(model, module).constructors:
        return False
    if path not in {access_path(n) for n in walk(branch.test) if isinstance(n, ast.expr)}:
        return False
    around = {optimizer, *module.table.ancestors(optimizer)}
    here = [s for suite in (branch.body, branch.orelse) if around & {*suite} for s in suite]
    used = [n for s in here for n in walk(s) if isinstance(n, ast.expr) and access_path(n) == path]
    return bool(used) and not any(study.models(n, module).constructors for n in used)


def _beside(node: ast.AST, module: Module) -> Iterator[tuple[ast.If, Sequence[ast.stmt]]]:
    """The branches that are not taken where ``node`` runs, each with its ``if``."""
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, ast.If):
            if child in parent.orelse:
                yield parent, parent.body
            elif child in parent.body:
                yield parent, parent.orelse
        for suite in (getattr(parent, name, ()) for name in ("body", "orelse", "finalbody")):
            if isinstance(suite, list) and child in suite:
                for before in suite[: suite.index(child)]:
                    if isinstance(before, ast.If) and leaves(before.body):
                        yield before, before.body
        child = parent
