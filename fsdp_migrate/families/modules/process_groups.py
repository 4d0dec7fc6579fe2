"""``model.process_group``, ``model.rank``, ``model.world_size``: FSDP2 models have none of them."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.values import Constant, Unknown
from fsdp_migrate.families.names import silent_fallbacks
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.syntax.trees import COMPREHENSIONS, FUNCTIONS

RULE = "FSDP406"


def decide_process_group(site: Site, study: Study) -> Decision:
    """``model.process_group``: the ranks that hold the shards, the smaller group of a hybrid."""
    found = study.models(site.subject, site.module)
    group = _group_in_scope(site, found.constructors, study) if found.certain else None
    if group is not None:
        proposal = study.proposal()
        new = code("{g}", g=group.id)
        if any(isinstance(v, (Constant, Unknown)) for v in study.values(group, site.module)):
            package = proposal.module_name(site.module, "torch.distributed", "dist", site.mention)
            new = code("({g} or {d}.group.WORLD)", g=group.id, d=package)
        proposal.replace(site.module, site.mention, new)
        message = "the group that was given"
        return study.rewritten(site, RULE, message, proposal, models=found.constructors)
    if not found.certain or not all(_over_all_ranks(c, study) for c in found.constructors):
        return study.left(
            site,
            RULE,
            "an FSDP2 model has no process_group",
            f"take the group of its mesh, between two steps: next({ast.unparse(site.subject)}"
            ".parameters()).device_mesh.get_group(-1)",
            models=found.constructors,
        )
    proposal = study.proposal()
    package = proposal.module_name(site.module, "torch.distributed", "dist", site.mention)
    proposal.replace(site.module, site.mention, code("{d}.group.WORLD", d=package))
    return study.rewritten(site, RULE, "all ranks", proposal, models=found.constructors)


def decide_rank(site: Site, study: Study) -> Decision:
    """``model.rank`` and ``model.world_size``, which are those of the group that shards it."""
    name = site.attribute.attr
    found = study.models(site.subject, site.module)
    given = _group_in_scope(site, found.constructors, study) if found.certain else None
    known = found.certain and all(_over_all_ranks(c, study) for c in found.constructors)
    if given is None and not known:
        method = "get_local_rank" if name == "rank" else "size"
        return study.left(
            site,
            RULE,
            f"an FSDP2 model has no {name}",
            f"ask its mesh, between two steps: next({ast.unparse(site.subject)}"
            f".parameters()).device_mesh.{method}(-1)",
            models=found.constructors,
            quiet=silent_fallbacks.is_passed_over(site.attribute, site.module, study),
        )
    proposal = study.proposal()
    package = proposal.module_name(site.module, "torch.distributed", "dist", site.attribute)
    new = code(f"{{d}}.get_{name}({given.id if given is not None else ''})", d=package)
    proposal.replace(site.module, site.attribute, new)
    message = "that of the group" if given is not None else "that of all ranks"
    return study.rewritten(site, RULE, message, proposal, models=found.constructors)


def _group_in_scope(
    site: Site, constructors: frozenset[Constructor], study: Study
) -> ast.Name | None:
    """The name of the group that the model was given, if it means the same group at the site."""
    if len(constructors) != 1:
        return None
    (constructor,) = constructors
    group = constructor.arguments.get("process_group")
    if constructor.module is not site.module or not isinstance(group, ast.Name):
        return None
    if constructor.is_context or constructor.may_have("device_mesh"):
        return None
    if not strategies.is_over_all(constructor, study):
        return None
    table = site.module.table
    for parent in table.ancestors(constructor.call):
        if isinstance(parent, FUNCTIONS):
            break
        if isinstance(parent, (ast.For, ast.AsyncFor, ast.While, *COMPREHENSIONS)):
            return None  # each model may have another group
    owner = table.within[group].lookup(group.id)
    here = table.scope_of(site.statement)
    if owner is None or owner is not here.lookup(group.id) or len(owner.bindings[group.id]) != 1:
        return None
    same = table.scope_of(group).function() is here.function()
    return group if same else None


def _over_all_ranks(constructor: Constructor, study: Study) -> bool:
    given = constructor.may_have("process_group") or constructor.has("device_mesh")
    if constructor.is_context or given:
        return False
    return strategies.is_over_all(constructor, study) or strategies.is_replicated(
        frozenset({constructor}), study
    )
