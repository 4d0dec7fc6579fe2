"""Ask a sharded model for the class that it was made of."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.modules import own_classes
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP424",
    name="own_class",
    handles=(
        "class of a model",
        "case for the class of a model",
        "dispatch on the class of a model",
    ),
    finders=(Finder(175, own_classes.find_own_classes),),
)

TRUE_NOW = (
    "this was false of FSDP1's wrapper, and is true of an FSDP2 model that was made of this class"
)
CHOSEN = (
    "what is registered for the model's own class did not run for FSDP1's wrapper, and runs for an "
    "FSDP2 model of this class"
)
BOTH = (
    "the module inside of FSDP1's wrapper comes here as well, of which this was true: FSDP2 has "
    "one module for both"
)


def decide(site: Site, study: Study) -> Decision:
    models = study.models(site.subject, site.module).constructors
    models = models or frozenset(study.reached_from(site.module))
    plain = _may_stand_twice(site.subject)
    if site.construct == own_classes.DISPATCH:
        of_model = f"{site.doubt}: if this is the FSDP model, " if site.doubt else ""
        return study.kept_as_is(site, RULE.code, "kept", models=models, review=of_model + CHOSEN)
    if site.doubt:
        review = f"{site.doubt}: if this is the FSDP model, {TRUE_NOW}"
        return study.kept_as_is(site, RULE.code, "kept", models=models, review=review)
    if site.construct != own_classes.CONSTRUCT or not plain:
        return study.kept_as_is(site, RULE.code, "kept", models=models, review=TRUE_NOW)
    proposal = study.proposal()
    table, check = site.module.table, site.call
    name = proposal.name(site.module, PACKAGE, "FSDPModule", check)
    sharded = code("isinstance({m}, {n})", m=site.subject, n=name)
    parent = table.parents[check]
    if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
        proposal.replace(site.module, parent, code("not {c} or {s}", c=check, s=sharded))
    else:
        proposal.replace(site.module, check, code("{c} and not {s}", c=check, s=sharded))
    review = BOTH if own_classes.comes_unwrapped(site, study) else ""
    message = "false of sharded models, as it was of FSDP1's wrapper"
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _may_stand_twice(node: ast.expr) -> bool:
    """Whether an expression gives the same object again, and does nothing else."""
    match node:
        case ast.Subscript(value=ast.Call(func=ast.Name(id="vars"), args=[owner])):
            return access_path(owner) is not None and isinstance(
                node.slice, (ast.Constant, ast.Name)
            )
        case ast.Call(func=ast.Name(id="getattr"), args=[owner, name, *default], keywords=[]):
            given = [each for each in (owner, name, *default) if not isinstance(each, ast.Constant)]
            return all(access_path(each) is not None for each in given)
        case ast.Call(func=ast.Attribute(value=owner, attr="get_submodule"), args=[ast.Constant()]):
            return access_path(owner) is not None
    return access_path(node) is not None
