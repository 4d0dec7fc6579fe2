"""Parameters and gradients that are handed to collectives, one by one.

FSDP1's pieces were plain tensors; no collective takes a ``DTensor`` (``NotImplementedError``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.elements import is_looped, lists_of
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.parameters.parameter_owners import models_concerned, models_of_list
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import given_arguments

RULE = "FSDP408"

COMMUNICATED = Construct.parse("parameter in a collective")
COLLECTIVES = frozenset(
    {"all_gather", "all_gather_into_tensor", "all_reduce", "broadcast", "gather", "irecv", "isend"}
    | {"P2POp", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"}
)
SIZES = (
    "this rank's part of each parameter is communicated, as in FSDP1: the ranks of a group must "
    "have parts of the same size, which the first dimension decides now"
)


def find_communicated(study: Study, module: Module) -> Iterator[Site]:
    """Sites for what collectives are given that is, or may be, a parameter or its gradient."""
    if not study.constructors:
        return
    for call in module.table.calls_by_name.of(COLLECTIVES):
        given = [(a, list(lists_of(a, study, module))) for a in given_arguments(call)]
        if not any(lists for _, lists in given):
            continue  # as nearly always
        if not any(f.startswith("torch.") for f in study.external(call.func, module)):
            continue
        for argument, lists in given:
            held = [each for each in lists if models_of_list(each[0], study, each[1])]
            if held and not is_gathered(argument, study, module):
                looped = is_looped(argument, study, module)  # and no function's parameter
                receiver = (_model_of(lists, module) if looped else None) or argument
                yield Site(COMMUNICATED, module, argument, argument, receiver)


def _model_of(lists: list[tuple[ast.expr, Module]], module: Module) -> ast.expr | None:
    """``model``, if all that is communicated comes of one ``model.parameters()`` in this file."""
    match lists:
        case [(ast.Call(func=ast.Attribute(value=model, attr=attr)), where)]:
            return model if attr in METHODS and where is module else None
    return None


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
