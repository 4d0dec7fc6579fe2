"""Parameters and gradients that a loop hands to collectives, one by one.

FSDP1's pieces were plain tensors; no collective takes a ``DTensor`` (``NotImplementedError``).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.parameters.parameter_loops import loop_over
from fsdp_migrate.families.parameters.parameter_owners import models_concerned
from fsdp_migrate.families.training_loop.reductions import PARTS
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import given_arguments, last_name, names_in
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP408"

COMMUNICATED = Construct.parse("parameter in a collective")
COLLECTIVES = frozenset(
    {"all_gather", "all_gather_into_tensor", "all_reduce", "broadcast", "gather", "irecv", "isend"}
    | {"recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"}
)
SIZES = (
    "this rank's part of each parameter is communicated, as in FSDP1: the ranks of a group must "
    "have parts of the same size, which the first dimension decides now"
)


def find_communicated(
    iterated: ast.expr, receiver: ast.expr, study: Study, module: Module
) -> Iterator[Site]:
    """Sites for the variables of a loop that are given to collectives."""
    loop = loop_over(iterated, module)
    if loop is None:
        return
    target, region, _ = loop
    names = names_in(target)
    calls = (n for part in region for n in walk(part) if isinstance(n, ast.Call))
    for call in calls:
        for argument in given_arguments(call):
            if _is_part(argument, names) and (
                _is_collective(call, study, module) or _hands_on(call, argument, study, module)
            ):
                yield Site(COMMUNICATED, module, argument, argument, receiver)


def _is_collective(call: ast.Call, study: Study, module: Module) -> bool:
    named = last_name(call.func) in COLLECTIVES
    return named and any(f.startswith("torch.") for f in study.external(call.func, module))


def _hands_on(call: ast.Call, argument: ast.expr, study: Study, module: Module) -> bool:
    """Whether a function of the project's hands what it is given to a collective, in place: what
    it returns is not taken for the gradient."""
    statement = module.table.statement(call)
    if isinstance(statement, ast.Assign) and any(map(_is_stored, statement.targets)):
        return False
    if last_name(call.func) not in study.cache(_communicating):
        return False  # as nearly always
    for function in study.values(call.func, module):
        if not isinstance(function, Function) or isinstance(function.node, ast.Lambda):
            continue
        name = _parameter(call, argument, function)
        inner = (n for n in walk(function.node) if isinstance(n, ast.Call))
        for each in inner if name else ():
            taken = any(_is_part(a, {name}) for a in given_arguments(each))
            if taken and _is_collective(each, study, function.module):
                return True
    return False


def _communicating(study: Study) -> frozenset[str]:
    """The names of the project's functions that call what is named as a collective."""
    return frozenset(
        function.name
        for module in study.project.modules
        if module.mentions(*COLLECTIVES)
        for call in module.table.calls_by_name.of(COLLECTIVES)
        for function in module.table.ancestors(call)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
    )


def _is_stored(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr in PARTS


def _parameter(call: ast.Call, argument: ast.expr, function: Function) -> str:
    """The name that a function has for an argument of a call."""
    for keyword in call.keywords:
        if keyword.value is argument:
            return keyword.arg or ""
    names = [a.arg for a in (*function.node.args.posonlyargs, *function.node.args.args)]
    names = names[1:] if function.owner is not None else names
    placed = dict(zip(map(id, call.args), names, strict=False))
    return placed.get(id(argument), "")


def _is_part(node: ast.expr, names: Collection[str]) -> bool:
    """Whether it is ``p``, ``p.data`` or ``p.grad`` of a variable."""
    while isinstance(node, ast.Attribute) and node.attr in PARTS:
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def decide_communicated(site: Site, study: Study) -> Decision:
    """Hand this rank's own part on."""
    models = models_concerned(site, study)
    proposal = study.proposal()
    certain = study.traced(site.subject, site.module) and not study.may_ignore(models)
    if certain and study.models(site.subject, site.module).certain:
        new = code("{p}.to_local()", p=site.expression)
    else:
        function = proposal.support(site.module, "own_part", site.node)
        new = code("{f}({p})", f=function, p=site.expression)
    proposal.replace(site.module, site.expression, new)
    message = "this rank's part of it"
    return study.rewritten(site, RULE, message, proposal, models=models, review=SIZES)
