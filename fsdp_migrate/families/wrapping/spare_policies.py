"""Policies that no constructor in sight is given.

``get_mistral_policy()`` beside ``get_llama_policy()``, which is called: whoever takes the one in
the place of the other hands it to the loop that is written now, which asks no policy of FSDP1's.
A policy under a function's own name that nothing reads goes.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from fsdp_migrate.families.wrapping import policies, policy_loops, policy_sizes, unread_names
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import walk

FORMS = frozenset({policy_loops.CLASSES, policy_loops.PREDICATE})
REVIEW = (
    "no FSDP constructor in the given paths uses this policy; it is written as those are that are "
    "used"
)


class Spare(NamedTuple):
    """What becomes of a policy, and the constructors that are given others in that form."""

    new: Code
    message: str
    constructors: frozenset[Constructor]


def statement_that_nothing_reads(site: Site, study: Study) -> ast.stmt | None:
    """The statement of a function that keeps a policy under a name which nothing reads, if it does
    nothing else."""
    table = site.module.table
    match table.parents[site.expression]:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as value) as made:
            scope = table.scope_of(made)
            calls = [node for node in walk(value) if isinstance(node, ast.Call)]
            is_own = scope.is_function and name in scope.bindings
            hidden = site.module.mentions("locals", "vars")
            if is_own and not hidden and calls == [value] and not table.reads(name, scope):
                return made
    return None


def like_others(site: Site, study: Study) -> Spare | None:
    """How a policy is written that a function returns: as others that functions return, if those
    have one form. Where nothing reads the function's name, no loop asks for one, and it may have
    the form that a policy of its kind has by itself. None where that cannot be said."""
    if not _is_returned(site.expression, site):
        return None
    others = [
        conversion
        for node, conversion in study.conversions.items()
        if conversion.message in FORMS and isinstance(node, ast.Call)
    ]
    forms = {each.message for each in others}
    is_spare = not review(site, study)
    if len(forms) != 1 and not is_spare:
        return None
    try:
        found = policies.read(study.values(site.expression, site.module), study)
    except policies.Unreadable:
        return None
    if len(found) != 1:
        return None
    if found[0].by_size and is_spare and isinstance(site.node, ast.Call):
        return Spare(policy_sizes.count(found[0]), "number of parameters", study.every_constructor)
    if found[0].kind is not policies.Kind.CLASSES:
        return None
    message = forms.pop() if len(forms) == 1 else policy_loops.CLASSES
    new = policy_loops.written_in(message, found[0])
    models = frozenset().union(*(each.constructors for each in others))
    return Spare(new, message, models or study.every_constructor)


def review(site: Site, study: Study) -> str:
    """What there is to judge where the function may be for others, or is called by another name."""
    function = enclosing_function(site.module, site.node)
    name = getattr(function, "name", "")
    is_spare = bool(name) and not study.published and not unread_names.is_read(name, study)
    return "" if is_spare else REVIEW


def _is_returned(node: ast.expr, site: Site) -> bool:
    """Whether a function does nothing with a value but return it."""
    table = site.module.table
    match table.parents[node]:
        case ast.Return():
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) as made:
            scope = table.scope_of(made)
            reads = table.reads(name, scope) if scope.is_function else []
            alone = len(scope.bindings[name]) == 1
            return (
                bool(reads)
                and alone
                and all(isinstance(table.parents[read], ast.Return) for read in reads)
            )
    return False
