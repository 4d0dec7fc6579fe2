"""Tuples of classes with FSDP1's in them: ``WRAPPERS = (FSDP, DDP)``."""

from __future__ import annotations

import ast

from fsdp_migrate.fsdp1 import unwrapping
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code, join
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax import type_expressions
from fsdp_migrate.syntax.kinds import present

RULE = "FSDP404"


def decide_listed_class(
    site: Site, models: frozenset[Constructor], study: Study
) -> Decision | None:
    """A class in a tuple for ``isinstance`` that FSDPModule cannot simply take the place of."""
    checks = unwrapping.listed_for(site.mention, site.module)
    takes_off = [c for c in checks if unwrapping.takes_off(c, site.module, study.tracer)]
    holder = unwrapping.classes_around(site.mention, site.module)
    is_tuple = isinstance(holder, ast.Tuple)
    elsewhere = _is_imported(site, study) if is_tuple else is_checked_elsewhere(site, study)
    if not takes_off and not elsewhere:
        return None
    classes = holder.elts if isinstance(holder, ast.Tuple) else []
    others = [e for e in classes if e is not site.mention]
    statement = site.statement
    if (
        not others
        and takes_off == checks
        and not elsewhere
        and isinstance(statement, ast.AugAssign)
    ):
        proposal = study.proposal()
        proposal.delete(site.module, statement)
        message = "kept for the other wrappers: an FSDP2 model has no inner module"
        return study.rewritten(site, RULE, message, proposal, models=models)
    if elsewhere or takes_off != checks or not others:
        why = "used in other files" if elsewhere else "also those of wrappers that are taken off"
        return study.left(
            site,
            RULE,
            f"these classes are {why}, and an FSDP2 model has no inner module",
            "use FSDPModule in place of FSDP where models are told apart by them",
            models=models,
            quiet=True,
        )
    holder = present(holder)
    proposal = study.proposal()
    listed = join(", ", [code("{o}", o=other) for other in others])
    comma = "," if len(others) == 1 else ""
    proposal.replace(site.module, holder, code("({l}{c})", l=listed, c=comma))
    message = "kept for the other wrappers: an FSDP2 model has no inner module"
    return study.rewritten(site, RULE, message, proposal, models=models)


def is_checked_elsewhere(site: Site, study: Study) -> bool:
    """Whether a type is an alias, and an ``isinstance`` of another file asks for it.

    An alias of the class alone is followed: that ``isinstance`` is looked at by itself.
    """
    if any(binding.value is site.reference for binding in study.project.aliases):
        return False
    match site.statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return any(
                module is not site.module
                and module.mentions(name)
                and type_expressions.is_checked(name, module.table)
                for module in study.project.modules
            )
    return False


def _is_imported(site: Site, study: Study) -> bool:
    """Whether another file names the tuple that a class stands in."""
    statement = site.statement
    targets = getattr(statement, "targets", None) or [getattr(statement, "target", None)]
    names = {t.id for t in targets if isinstance(t, ast.Name)}
    own = site.module.table.module
    if site.module.table.scope_of(site.node).module_scope() is not own:
        return False
    for module in study.project.modules:
        if module is not site.module and any(
            binding.name in names or binding.qualified.rpartition(".")[2] in names
            for binding in module.table.imports
        ):
            return True
        if any(a.attr in names for a in module.table.attributes):
            return True
    return False
