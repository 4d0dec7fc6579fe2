"""``model.process_group``, ``model.rank``, ``model.world_size``: FSDP2 models have none of them."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.values import Class, Made, Value
from fsdp_migrate.families.checkpoints import other_wrappers
from fsdp_migrate.families.checkpoints.compiled_models import may_be_compiled
from fsdp_migrate.families.names import silent_fallbacks
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.fsdp1.model_values import PLAIN_BASES
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal

RULE = "FSDP406"
# What asks a mesh for it, and what it is where all ranks hold the shards.
METHODS = {"process_group": "get_group", "rank": "get_local_rank", "world_size": "size"}
OF_ALL = {"process_group": "group.WORLD", "rank": "get_rank()", "world_size": "get_world_size()"}


def decide_group(site: Site, study: Study) -> Decision:
    """The ranks that hold the shards, the smaller group of a hybrid, and questions about it."""
    name = site.attribute.attr
    found = study.models(site.subject, site.module)
    ask = "take the group of" if name == "process_group" else "ask"
    of_all = all(_over_all_ranks(c, study) for c in found.constructors)
    # On what has no such attribute the program stops: where it goes on, this is FSDP1's model.
    others = [value for value in found.others if not _has_none(value, name, study)]
    apart = not any(other_wrappers.is_wrapped(value, found, study) for value in others)
    if others and may_be_compiled(found.constructors, study):
        apart = False  # no class tells
    if not found or not of_all or not apart:
        asked = f"next({ast.unparse(site.subject)}.parameters()).device_mesh.{METHODS[name]}(-1)"
        return study.left(
            site,
            RULE,
            f"an FSDP2 model has no {name}",
            f"it is that of all ranks: torch.distributed.{OF_ALL[name]}"
            if of_all and found.constructors
            else f"{ask} its mesh, between two steps: {asked}",
            models=found.constructors,
            quiet=silent_fallbacks.is_passed_over(site.attribute, site.module, study),
        )
    proposal = study.proposal()
    package = proposal.module_name(site.module, "torch.distributed", "dist", site.attribute)
    of_sharded = code(f"{{d}}.{OF_ALL[name]}", d=package)
    if others:
        of_sharded = _or_its_own(of_sharded, found.constructors, site, study, proposal)
    proposal.replace(site.module, site.attribute, of_sharded)
    return study.rewritten(site, RULE, "that of all ranks", proposal, models=found.constructors)


def _or_its_own(
    of_sharded: Code,
    models: frozenset[Constructor],
    site: Site,
    study: Study,
    proposal: Proposal,
) -> Code:
    """What another class of the project's, or DDP, has under the same name stays what it is."""
    own = code("{a}", a=site.attribute)
    chosen = other_wrappers.choice(
        *(of_sharded, own, site.subject, site.module, site.attribute, study, proposal),
        models=models,
        is_whole=True,
    )
    return code("({a} if {t} else {b})", a=chosen.where_true, t=chosen.test, b=chosen.otherwise)


def _has_none(value: Value, name: str, study: Study) -> bool:
    """Whether a value is surely a module of the project's that has no attribute ``name``: a model
    that is kept where the sharded one is kept later (``self.model = model``)."""
    if not isinstance(value, Made) or not isinstance(value.callee, Class):
        return False
    cls, tracer = value.callee, study.tracer
    if not tracer.external_bases(cls) <= _MODULES:
        return False
    return not any(tracer.has_attribute(cls, each) for each in (name, *_DYNAMIC)) and not any(
        cls in (getattr(v, "callee", None) for v in study.values(stored.value, module))
        for module in study.project.modules
        for stored in module.table.stored_attributes
        if stored.attr == name
    )


# Bases that have none of these attributes, and methods that may give an instance any.
_MODULES = PLAIN_BASES | {"torch.nn.Module", "torch.nn.modules.module.Module"}
_DYNAMIC = ("__getattr__", "__getattribute__")


def _over_all_ranks(constructor: Constructor, study: Study) -> bool:
    given = constructor.may_have("process_group") or constructor.has("device_mesh")
    if constructor.is_context or given:
        return False
    return strategies.is_of_all_ranks(constructor, study)
