"""Parameters and gradients that a loop hands to collectives, one by one.

FSDP1's pieces were plain tensors; no collective takes a ``DTensor`` (``NotImplementedError``).
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.module import Module
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
    loop = loop_over(iterated, module) if module.mentions(*COLLECTIVES) else None
    if loop is None:
        return
    target, region, _ = loop
    names = names_in(target)
    for node in (n for part in region for n in walk(part)):
        if not isinstance(node, ast.Call) or last_name(node.func) not in COLLECTIVES:
            continue
        given = [a for a in given_arguments(node) if _is_part(a, names)]
        if given and any(f.startswith("torch.") for f in study.external(node.func, module)):
            for argument in given:
                yield Site(COMMUNICATED, module, argument, argument, receiver)


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
