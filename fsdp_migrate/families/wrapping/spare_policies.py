"""Policies that no constructor in sight is given, in functions that return them.

``get_mistral_policy()`` beside ``get_llama_policy()``, which is called: whoever takes the one in
the place of the other hands it to the loop that is written now, which asks no policy of FSDP1's.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

from fsdp_migrate.families.wrapping import policies, policy_loops, unread_names
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code
from fsdp_migrate.planning.model import Constructor

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


def like_others(site: Site, study: Study) -> Spare | None:
    """How a policy is written that a function returns, if others that functions return have one
    form; None where that cannot be said."""
    if not _is_returned(site.expression, site):
        return None
    others = [
        conversion
        for node, conversion in study.conversions.items()
        if conversion.message in FORMS and isinstance(node, ast.Call)
    ]
    if len({each.message for each in others}) != 1:
        return None
    try:
        found = policies.read(study.values(site.expression, site.module), study)
    except policies.Unreadable:
        return None
    if len(found) != 1 or found[0].kind is not policies.Kind.CLASSES:
        return None
    message = others[0].message
    new = policy_loops.written_in(message, found[0])
    return Spare(new, message, frozenset().union(*(each.constructors for each in others)))


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
