"""Loops that change the parameters of a model in place: ``p.mul_(decay)``, and ``p.data = x``.

After an evaluation the root's parameters are plain tensors: what is written to them is lost.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_loops import METHODS, changes_in_place, names_bound
from fsdp_migrate.families.parameters.parameter_owners import owner_of_groups
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.syntax.scopes import walk

STALE = (  # what to review of writing to a model that no backward goes through
    "after an evaluation of this model, FSDP1 lost what was written to its root's parameters, for "
    "no backward had freed them; now the next evaluation sees it"
)


def groups_loop(site: Site) -> ast.stmt:
    """The loop over an optimizer's groups that a site stands in, or its statement."""
    for parent in site.module.table.ancestors(site.node):
        if (
            isinstance(parent, (ast.For, ast.AsyncFor))
            and owner_of_groups(parent.iter) is site.receiver
        ):
            return parent
    return site.statement


def models_changed(iterated: ast.expr, module: Module) -> list[ast.expr]:
    """The models whose parameters a loop changes in place: ``e`` of ``for e, p in zip(...)``."""
    loop = module.table.parents[iterated]
    assert isinstance(loop, (ast.For, ast.AsyncFor))
    parts: list[tuple[ast.expr, ast.expr]] = [(loop.target, iterated)]
    match iterated, loop.target:
        case (
            ast.Call(func=ast.Name(id="zip"), args=given),
            ast.Tuple(elts=targets) | ast.List(elts=targets),
        ) if len(given) == len(targets):
            parts = list(zip(targets, given, strict=True))
    found = []
    for target, source in parts:
        if not changes_in_place(names_bound(target), loop.body):
            continue
        for node in walk(source):
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in METHODS:
                found.append(method.value)
    return found
