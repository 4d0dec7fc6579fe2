"""Numbers that a loop computes of a model's parameters or gradients, one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_loops import loop_over, names_bound
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.scopes import walk

REDUCED = "parameter norm over ranks"
NUMBER = "parameter norm"


def find_numbers(
    iterated: ast.expr, receiver: ast.expr, study: Study, module: Module
) -> Iterator[Site]:
    """What a loop computes of every parameter or gradient, unless it is this rank's number."""
    loop = loop_over(iterated, module)
    if loop is None:
        return
    target, region, whole = loop
    single = False
    for reduction in reductions.find_reductions(names_bound(target), region, study, module):
        if reductions.is_number(reduction, module):
            continue
        if reductions.is_reduced(reduction.node, study, module):
            yield Site(REDUCED, module, reduction.node, reduction.node, receiver)
        else:
            single = True
    if single:
        yield Site(NUMBER, module, whole, whole, receiver)


def reduction(site: Site, study: Study) -> reductions.Reduction:
    """What a site reduces."""
    module = site.module
    for parent in module.table.ancestors(site.node):
        parts: list[tuple[ast.expr, Sequence[ast.AST]]] = []
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            parts = [(parent.target, parent.body)]
        elif isinstance(parent, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            parts = [(g.target, [parent]) for g in parent.generators]
        for target, region in parts:
            for found in reductions.find_reductions(names_bound(target), region, study, module):
                if found.node is site.node:
                    return found
    for inner in walk(site.node):  # f([p.grad for p in ...])
        if isinstance(inner, ast.comprehension):
            for found in reductions.find_reductions(
                names_bound(inner.target), [site.node], study, module
            ):
                if found.node is site.node:
                    return found
    raise AssertionError("the reduction of a site is where it was found")
