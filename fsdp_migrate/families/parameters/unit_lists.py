"""``units += module.params``: the flat parameters of units in lists, changed as one.

A moving average of a teacher goes over the units of both models and changes what it has listed by
``torch._foreach_*``. FSDP2's units have no flat parameter: the list gets each parameter of a unit's
own, without those of units inside it, so that nothing is in it twice.
"""

from __future__ import annotations

import ast

from fsdp_migrate.families.parameters.parameter_updates import STALE
from fsdp_migrate.families.training_loop.early_optimizers import trained_models
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import last_name

REVIEW = (
    "FSDP1 listed one flat parameter for a unit here, now every parameter of it is listed, and "
    "each is this rank's part as before: what goes over the list sees more and smaller ones"
)


def decide_listed(site: Site, code_of_rule: str, study: Study) -> Decision | None:
    """The answer for the parameters of a unit that go into a list, changed element by element."""
    attribute = site.reference
    if not isinstance(attribute, ast.Attribute) or not _is_listed(attribute, site):
        return None
    models = study.models(site.subject, site.module).constructors or study.every_constructor
    proposal = study.proposal()
    function = proposal.support(site.module, "unit_parameters", site.node)
    new = code("{f}({m})", f=function, m=site.subject)
    proposal.replace(site.module, attribute, new)
    message = "the parameters of the unit's own"
    stale = "" if models & trained_models(study) else STALE
    return study.rewritten(
        site,
        code_of_rule,
        message,
        proposal,
        models=models,
        review="; ".join(filter(None, (REVIEW, stale))),
    )


def _is_listed(attribute: ast.Attribute, site: Site) -> bool:
    """Whether they are added to a list of which nothing but ``torch._foreach_*`` makes use."""
    parent = site.module.table.parents[attribute]
    match parent:
        case ast.AugAssign(target=ast.Name() as listed, op=ast.Add()) if parent.value is attribute:
            pass
        case ast.Call(
            func=ast.Attribute(value=ast.Name() as listed, attr="extend"), args=[_], keywords=[]
        ):
            pass
        case _:
            return False
    table = site.module.table
    scope = table.within[listed].lookup(listed.id)
    if scope is None or scope is table.module:
        return False
    made = [b.node for b in scope.bindings[listed.id] if not isinstance(b.node, ast.AugAssign)]
    begins = all(isinstance(n, ast.Assign) and _is_empty(n, listed.id) for n in made)
    return begins and all(_is_changed(read, site) for read in table.reads(listed.id, scope))


def _is_empty(assigned: ast.Assign, name: str) -> bool:
    """Whether a name gets an empty list: ``a = []``, or ``a, b = [], []``."""
    match assigned:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(
            names
        ) == len(values):
            given = [v for n, v in zip(names, values, strict=True) if last_name(n) == name]
        case _:
            given = [assigned.value]
    return all(isinstance(value, ast.List) and not value.elts for value in given)


def _is_changed(read: ast.Name, site: Site) -> bool:
    parent = site.module.table.parents[read]
    if isinstance(parent, ast.AugAssign):
        return parent.target is read
    if isinstance(parent, ast.Attribute):
        return parent.attr == "extend"
    return isinstance(parent, ast.Call) and last_name(parent.func).startswith("_foreach_")
