"""Call the model, not its `forward`."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.subclasses import subclass_methods
from fsdp_migrate.families.training_loop import part_forwards
from fsdp_migrate.families.wrapping import forward_registration
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule

RULE = Rule(
    code="FSDP409",
    name="forward",
    handles=("FullyShardedDataParallel.forward", "forward of a part"),
    finders=(Finder(235, part_forwards.find_part_forwards),),
)


DESCRIBES = frozenset({"functools.wraps", "functools.update_wrapper"})
RUNS = (".checkpoint", "functools.partial")


def decide(site: Site, study: Study) -> Decision:
    if site.construct == part_forwards.PART:
        return _of_a_part(site, study)
    models = study.models(site.subject, site.module).constructors
    outer = site.module.table.parents[site.mention]
    names = study.external(outer.func, site.module) if isinstance(outer, ast.Call) else frozenset()
    if any(name.startswith("inspect.") or name in DESCRIBES for name in names):
        return study.rewritten(site, RULE.code, "kept: it is not called here", models=models)
    if any(subclass_methods.defines(c, "__call__", study) for c in models):
        return study.left(
            site,
            RULE.code,
            "the class of this model has a __call__ of its own, around forward",
            "move what forward is given before the call into a method of that class",
            models=models,
            quiet=True,
        )
    runs = site.node is outer or any(name.endswith(RUNS) for name in names)
    if not runs and _is_replaced(site):
        casts = forward_registration.casts_inputs(models, study)
        return study.rewritten(
            site,
            RULE.code,
            "kept: hooks run around what replaces it",
            models=models,
            review=CAST if casts else "",
        )
    if not runs:
        return study.left(
            site,
            RULE.code,
            "what is done with this forward is not seen here",
            "where it is called, call the model",
            models=models,
        )
    proposal = study.proposal()
    proposal.replace(site.module, site.mention, code("{m}", m=site.subject))
    return study.rewritten(site, RULE.code, "the model itself", proposal, models=models)


CAST = "under mixed precision, what replaces forward now gets inputs in param_dtype"


def _of_a_part(site: Site, study: Study) -> Decision:
    """Call a part of a model, whose units gather their parameters when they are called."""
    whole = part_forwards.whole_of(site.call, site.module, study)
    assert whole is not None, "the site was found by it"
    review = ""
    if part_forwards.may_come_first(site.call, whole, site.module, study):
        review = FIRST
    elif whole.model is None and not part_forwards.is_certain(site.subject, site.module, study):
        review = UNKNOWN
    proposal = study.proposal()
    proposal.replace(site.module, site.mention, code("{m}", m=site.subject))
    return study.rewritten(
        site, RULE.code, "the part itself", proposal, models=whole.models, review=review
    )


FIRST = (
    "the whole model must have run once before a part of it is called alone; in FSDP1 a state that "
    "was asked for or loaded was enough"
)
UNKNOWN = "this was a call of its forward: as a unit it gathers its parameters when it is called"


def _is_replaced(site: Site) -> bool:
    """Whether a ``forward`` is only kept to be called by its replacement on the same model."""
    table = site.module.table
    places = [
        statement
        for attribute in table.attributes
        if attribute.attr == "forward" and isinstance(attribute.ctx, ast.Store)
        if access_path(attribute.value) == access_path(site.subject) is not None
        for statement in [table.statement(attribute)]
        if table.scope_of(statement).function() is table.scope_of(site.node).function()
    ]
    kept = site.statement
    if kept in places:
        return True
    target = kept.targets[0] if isinstance(kept, ast.Assign) else None
    if not places or not isinstance(target, ast.Name) or kept.value is not site.reference:  # type: ignore[attr-defined]
        return False
    scope = table.within[target]
    return all(
        table.statement(name) in places or table.within[name].function() is not scope.function()
        for name in table.reads(target.id, scope)
    )
