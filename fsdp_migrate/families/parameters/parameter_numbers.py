"""Numbers that a loop computes of a model's parameters or gradients, one by one."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import pairwise

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters import elements, penalties, value_reads
from fsdp_migrate.families.parameters.parameter_loops import (
    COUNT,
    loop_over,
    uses_of_variables,
)
from fsdp_migrate.families.parameters.parameter_owners import models_concerned, models_of_list
from fsdp_migrate.families.parameters.value_reads import Read
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

RULE = "FSDP408"

REDUCED = Construct.parse("parameter norm over ranks")
NUMBER = Construct.parse("parameter norm")
OWN = Construct.parse("own number of a parameter")
VALUES = Construct.parse("values of a parameter")


def find_numbers(
    iterated: ast.expr, receiver: ast.expr, study: Study, module: Module
) -> Iterator[Site]:
    """Sites for numbers that a loop computes of parameters or gradients, one by one."""
    loop = loop_over(iterated, module)
    if loop is None:
        return
    target, region, whole = loop
    if isinstance(whole, ast.Call) and not isinstance(whole.args[0], ast.Lambda):
        return  # a function that is called for each is asked by itself
    variables = _variables(iterated, target, module)
    yield from _numbers(names_in(target), variables, region, whole, receiver, study, module)


def find_in_functions(study: Study, module: Module) -> Iterator[Site]:
    """Sites for numbers that a function computes of a parameter or gradient that it is given."""
    if not study.constructors:
        return
    calls = module.table.calls_by_name.of(reductions.REDUCING - reductions.OF_LISTS)
    functions = dict.fromkeys(enclosing_function(module, call) for call in calls)
    for function in functions:
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        arguments = function.args
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        found = reductions.find_reductions({a.arg for a in every}, function.body, study, module)
        receivers: dict[str, ast.expr] = {}
        for base in (base for reduction in found for base in reduction.bases):
            variable = elements.variable_of(base)
            if not isinstance(variable, ast.Name) or variable.id in receivers:
                continue
            kinds = {d.kind for d in study.defined_by(variable, module)}
            if kinds and Kind.ELEMENT not in kinds and _is_of_list(variable, study, module):
                receivers[variable.id] = variable
        known: set[ast.AST] = set()  # of several parameters
        for name, receiver in receivers.items():
            if is_gathered(function, study, module):
                continue
            names, region = set(receivers), function.body
            for site in _numbers(names, {name}, region, None, receiver, study, module):
                if site.node not in known:
                    known.add(site.node)
                    yield site


def _is_of_list(variable: ast.expr, study: Study, module: Module) -> bool:
    lists = elements.lists_of(variable, study, module)
    return any(models_of_list(each, study, where) for each, where in lists)


def _numbers(
    names: set[str],
    variables: set[str],
    region: Sequence[ast.AST],
    whole: ast.expr | ast.stmt | None,
    receiver: ast.expr,
    study: Study,
    module: Module,
) -> Iterator[Site]:
    """Sites for numbers of what variables hold: where they are computed, or one for the loop."""
    read_here: set[ast.expr] = set()
    terms: set[ast.AST] = set()
    single: ast.expr | None = None
    for reduction in reductions.find_reductions(names, region, study, module):
        if reductions.is_number(reduction.node, module):
            continue
        if reductions.is_reduced(reduction.node, study, module):
            read_here.add(reduction.node)
            yield Site(REDUCED, module, reduction.node, reduction.node, receiver)
        elif penalties.is_penalty(reduction, study, module):
            read_here.add(reduction.node)
            if (term := penalties.term_of(reduction, module)) not in terms:
                terms.add(term)
                yield Site(penalties.PENALTY, module, reduction.node, reduction.node, receiver)
        else:
            single = single or reduction.node
    read_here |= {n for term in terms for n in walk(term) if isinstance(n, ast.expr)}
    found = value_reads.find_reads(variables, region, study, module)
    for each in found:
        if each.read is Read.VALUES:
            yield Site(VALUES, module, each.node, each.node, receiver)
    for kind, construct in ((Read.NUMBER, NUMBER), (Read.OWN, OWN)):
        for each in found:
            if single is None and each.read is kind and each.node not in read_here:
                adds_up = kind is Read.OWN and _adds_up(each, study, module)
                single = None if adds_up else each.node
        if single is not None:
            node = single if whole is None or _is_counted(whole, names, region) else whole
            yield Site(construct, module, node, node, receiver)
            return


def _is_counted(whole: ast.expr | ast.stmt, names: set[str], region: Sequence[ast.AST]) -> bool:
    """Whether the loop has a site for ``p.numel()`` of its own: a place has but one."""
    return (whole, COUNT) in uses_of_variables(whole, names, region)


def _adds_up(found: value_reads.Found, study: Study, module: Module) -> bool:
    """Whether the program adds this rank's own numbers up, and gets that of all: no mean."""
    name = last_name(of_kind(found.node, ast.Call).func)
    return name != "mean" and reductions.is_reduced(found.node, study, module)


def _variables(iterated: ast.expr, target: ast.expr, module: Module) -> set[str]:
    """The variables that hold the elements of what a loop goes over: ``p`` of ``for i, (n, p) in
    enumerate(model.named_parameters())``."""
    chain = [iterated]
    for parent in module.table.ancestors(iterated):
        if not isinstance(parent, ast.Call):
            break
        chain.append(parent)
    for child, call in reversed(list(pairwise(chain))):
        arguments, name = of_kind(call, ast.Call).args, last_name(of_kind(call, ast.Call).func)
        if name in {"enumerate", "zip"}:
            place = -1 if name == "enumerate" else arguments.index(child)
            if not isinstance(target, ast.Tuple) or place >= len(target.elts):
                return set()
            target = target.elts[place]
    if isinstance(iterated, ast.Call) and last_name(iterated.func) in {"named_parameters", "items"}:
        if not isinstance(target, ast.Tuple):
            return set()
        target = target.elts[-1]
    return names_in(target)


def reduction(site: Site, study: Study) -> reductions.Reduction:
    """The reduction that a site was found for."""
    module = site.module
    for parent in module.table.ancestors(site.node):
        parts: list[tuple[ast.expr, Sequence[ast.AST]]] = []
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            parts = [(parent.target, parent.body)]
        elif isinstance(parent, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            parts = [(g.target, [parent]) for g in parent.generators]
        elif isinstance(parent, FUNCTIONS):  # which is called for each
            body = [parent.body] if isinstance(parent, ast.Lambda) else parent.body
            names: list[ast.expr] = [ast.Name(each.arg) for each in parent.args.args]
            parts = [(each, body) for each in [*names, ast.Tuple(names)]]
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
    """Give the program this rank's number, because it adds the numbers of all ranks up, or a loss
    has it."""
    found = study.models(site.subject, site.module)
    models = models_concerned(site, study) or frozenset(study.reached_from(site.module))
    reduced = reduction(site, study)
    traced = study.traced(site.subject, site.module) and found.certain
    ignores = study.may_ignore(models)
    proposal = study.proposal()
    in_loss = site.construct == penalties.PENALTY
    if in_loss:
        penalties.take_parts(reduced, site.module, proposal)
    for base in () if in_loss else reduced.bases:
        gradient = isinstance(base, ast.Attribute) and "grad" in ast.unparse(base)
        if traced and gradient and not ignores:
            proposal.replace(site.module, base, code("{b}.to_local()", b=base))
        else:
            function = proposal.support(site.module, "own_part", base)
            proposal.replace(site.module, base, code("{f}({b})", f=function, b=base))
    review = said_of_reduced(reduced, study, site.module)
    message = "of this rank's part, which the program adds up"
    if in_loss:
        review = penalties.said_of(reduced, site.module)
        message = "of this rank's part, which the loss has in it"
    return study.rewritten(site, RULE, message, proposal, models=models, review=review)


def said_of_reduced(reduced: reductions.Reduction, study: Study, module: Module) -> str:
    """What is another number than FSDP1's, though it is this rank's."""
    if reduced.is_extreme:
        return EMPTY
    if reduced.is_mean:
        return OTHERS
    return ROOTS if reductions.adds_up_roots(reduced, study, module) else ""


EMPTY = (
    "a rank that has no row of a parameter has no largest or smallest number of it, and fails; "
    "FSDP1 had no gradient there"
)
ROOTS = (
    "norms of the ranks are added up here, not their squares: that number depends on how "
    "parameters are parted, and FSDP1 parted them otherwise"
)
OTHERS = "this rank's part has other elements of the parameter than FSDP1's piece, and another mean"


def decide_values(site: Site, study: Study) -> Decision:
    """Read this rank's part, because no list and no array is made of a DTensor."""
    *_, found = (  # the innermost
        each
        for node in ast.walk(site.expression)
        if isinstance(node, ast.expr)
        for each in value_reads.reads_of(node, study, site.module)
        if isinstance(each, value_reads.Found) and each.node is site.node
    )
    proposal = study.proposal()
    function = proposal.support(site.module, "own_part", found.base)
    proposal.replace(site.module, found.base, code("{f}({b})", f=function, b=found.base))
    models = models_concerned(site, study)
    return study.rewritten(
        site, RULE, "of this rank's part", proposal, models=models, review=OTHER_ELEMENTS
    )


OTHER_ELEMENTS = (
    "this rank's part has other elements of the parameter than FSDP1's piece, and an evaluation "
    "may have left the whole of it: what needs every element takes full_tensor(), on every rank"
)
