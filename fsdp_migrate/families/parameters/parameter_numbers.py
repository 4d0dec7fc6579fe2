"""Numbers that a loop computes of a model's parameters or gradients, one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.parameter_loops import loop_over
from fsdp_migrate.families.parameters.parameter_owners import models_concerned
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP408"

REDUCED = Construct.parse("parameter norm over ranks")
NUMBER = Construct.parse("parameter norm")


def find_numbers(
    iterated: ast.expr, receiver: ast.expr, study: Study, module: Module
) -> Iterator[Site]:
    """Sites for numbers that a loop computes of parameters or gradients, one by one."""
    loop = loop_over(iterated, module)
    if loop is None:
        return
    target, region, whole = loop
    single = False
    for reduction in reductions.find_reductions(names_in(target), region, study, module):
        if reductions.is_number(reduction, module):
            continue
        if reductions.is_reduced(reduction.node, study, module):
            yield Site(REDUCED, module, reduction.node, reduction.node, receiver)
        else:
            single = True
    if single:
        yield Site(NUMBER, module, whole, whole, receiver)


def reduction(site: Site, study: Study) -> reductions.Reduction:
    """The reduction that a site was found for."""
    module = site.module
    for parent in module.table.ancestors(site.node):
        parts: list[tuple[ast.expr, Sequence[ast.AST]]] = []
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            parts = [(parent.target, parent.body)]
        elif isinstance(parent, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            parts = [(g.target, [parent]) for g in parent.generators]
        for target, region in parts:
            for found in reductions.find_reductions(names_in(target), region, study, module):
                if found.node is site.node:
                    return found
    for inner in walk(site.node):  # f([p.grad for p in ...])
        if isinstance(inner, ast.comprehension):
            for found in reductions.find_reductions(
                names_in(inner.target), [site.node], study, module
            ):
                if found.node is site.node:
                    return found
    raise AssertionError("the reduction of a site is where it was found")


def decide_reduced(site: Site, study: Study) -> Decision:
    """Give the program this rank's number, because it adds the numbers of all ranks up."""
    found = study.models(site.subject, site.module)
    models = models_concerned(site, study) or frozenset(study.reached_from(site.module))
    reduced = reduction(site, study)
    traced = study.traced(site.subject, site.module) and found.certain
    ignores = study.may_ignore(models)
    proposal = study.proposal()
    for base in reduced.bases:
        gradient = isinstance(base, ast.Attribute) and "grad" in ast.unparse(base)
        if traced and gradient and not ignores:
            proposal.replace(site.module, base, code("{b}.to_local()", b=base))
        else:
            function = proposal.support(site.module, "own_part", base)
            proposal.replace(site.module, base, code("{f}({b})", f=function, b=base))
    review = ""
    if reduced.is_extreme:
        review = EMPTY
    elif reduced.is_mean:
        review = OTHERS
    elif reductions.adds_up_roots(reduced, study, site.module):
        review = ROOTS
    message = "of this rank's part, which the program adds up"
    return study.rewritten(site, RULE, message, proposal, models=models, review=review)


EMPTY = (
    "a rank that has no row of a parameter has no largest or smallest number of it, and fails; "
    "FSDP1 had no gradient there"
)
ROOTS = (
    "norms of the ranks are added up here, not their squares: that number depends on how "
    "parameters are parted, and FSDP1 parted them otherwise"
)
OTHERS = "this rank's part has other elements of the parameter than FSDP1's piece, and another mean"
