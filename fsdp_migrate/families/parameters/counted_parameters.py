"""Elements of parameters that a program counts, and adds up over the ranks.

FSDP1's ``numel()`` was that of this rank's piece, so that the sum over the ranks was the model's.
A ``DTensor`` counts the whole parameter: added up over the ranks that is too many, without an
error. ``p.numel()``, ``torch.numel(p)`` and ``map(torch.numel, parameters)`` ask the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.elements import lists_of, variable_of
from fsdp_migrate.families.parameters.parameter_loops import (
    ASKED,
    COUNT,
    asked_at,
    counted,
    is_counted,
)
from fsdp_migrate.families.parameters.parameter_owners import (
    is_apart,
    knows_of_shards,
    may_be_flat,
    models_of_list,
)
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP408"


def find_questions_in_functions(study: Study, module: Module) -> Iterator[Site]:
    """Sites for what a function asks of a parameter that it is given: ``def size(p): return
    p.numel()`` of ``sum(map(size, parameters))``; of what is not added up, each once."""
    said: set[tuple[ast.AST, Construct]] = set()
    for attribute in module.table.attributes_by_name.of(ASKED) if study.constructors else ():
        function = enclosing_function(module, attribute)
        asked = asked_at(attribute, module)
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or asked is None:
            continue
        base, construct = asked
        variable = variable_of(base)
        if {d.kind for d in study.defined_by(variable, module)} != {Kind.PARAMETER}:
            continue
        call = module.table.parents[attribute]
        node: ast.expr = call if isinstance(call, ast.Call) and construct == COUNT else attribute
        is_reduced = construct == COUNT and reductions.is_reduced(node, study, module)
        if (function, construct) in said or is_gathered(function, study, module):
            continue
        lists = lists_of(variable, study, module)
        site = Site(construct, module, node, node, variable)
        if not any(models_of_list(each, study, where) for each, where in lists):
            continue
        if is_reduced:
            yield site
        elif not (knows_of_shards(attribute, module) or is_apart(site, study)):
            said.add((function, construct))
            yield site


def is_counted_over_ranks(
    names: set[str],
    region: Sequence[ast.AST],
    whole: ast.AST,
    study: Study,
    module: Module,
) -> bool:
    """Whether a loop counts elements of its variables that the program adds up over the ranks.

    Args:
        whole: the loop, or the call of ``map`` that has no body.
    """
    found = [node for part in region for node in walk(part) if is_counted(node, names)]
    written = all(node in module.table.parents for node in found)
    return any(reductions.is_reduced(n if written else whole, study, module) for n in found)


def added_up(site: Site, study: Study) -> list[ast.expr]:
    """The parameters whose elements are counted in a loop, or the lists of them that ``map`` goes
    over, if the program adds the numbers of all ranks up; none otherwise. Where it gathers them,
    each rank's own number counts."""
    function = enclosing_function(site.module, site.node)
    if any(isinstance(n, ast.Call) and "gather" in last_name(n.func) for n in walk(function)):
        return []
    names = {n.id for n in walk(site.node) if isinstance(n, ast.Name)}
    calls = [n for n in walk(site.node) if isinstance(n, ast.Call)]
    found = {call: base for call in calls if (base := counted(call, names)) is not None}
    if not found and isinstance(site.node, ast.Call):  # of what ``map`` calls by its name
        bases, found = site.node.args[1:], {site.node: site.node}
    else:
        bases = list(found.values())
    return bases if all(reductions.is_reduced(c, study, site.module) for c in found) else []


def decide_added_up(
    site: Site, bases: list[ast.expr], models: frozenset[Constructor], study: Study
) -> Decision:
    """Count this rank's part, because the program adds the numbers of all ranks up."""
    proposal = study.proposal()
    mapped = isinstance(site.node, ast.Call) and bases == site.node.args[1:]
    for base in bases:
        function = proposal.support(site.module, "own_part", base)
        part = "map({f}, {b})" if mapped else "{f}({b})"
        proposal.replace(site.module, base, code(part, f=function, b=base))
    review = f"{WHOLE}; {PADDED}" if may_be_flat(models) else WHOLE
    message = "of this rank's part, which the program adds up"
    return study.rewritten(site, RULE, message, proposal, models=models, review=review)


WHOLE = (
    "between a forward and its backward, and after an evaluation, each rank has all of the root's "
    "parameters, which then count once for every rank: call reshard() of the model first"
)
PADDED = (
    "without use_orig_params=True FSDP1 counted what its flat parameters were padded with as well, "
    "now the sum over the ranks is that of the parameters"
)
