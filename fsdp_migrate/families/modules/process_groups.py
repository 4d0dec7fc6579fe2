"""``model.process_group``, ``model.rank``, ``model.world_size``: FSDP2 models have none of them."""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
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
from fsdp_migrate.syntax.expressions import last_name

RULE = "FSDP406"
ENUM = "ShardingStrategy"
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
    if found and not of_all and not found.others and _is_of_mesh(found.constructors, study):
        return _of_mesh(site, found.constructors, study)
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


def decide_group_of_units(site: Site, models: frozenset[Constructor], study: Study) -> Decision:
    """As :func:`decide_group`, of units of models, which share their group."""
    if all(_over_all_ranks(c, study) for c in models):
        proposal = study.proposal()
        package = proposal.module_name(site.module, "torch.distributed", "dist", site.attribute)
        proposal.replace(site.module, site.attribute, code("{d}.group.WORLD", d=package))
        return study.rewritten(site, RULE, "that of all ranks", proposal, models=models)
    if _is_of_mesh(models, study):
        return _of_mesh(site, models, study)
    asked = f"next({ast.unparse(site.subject)}.parameters()).device_mesh.get_group(-1)"
    step = f"take the group of its mesh, between two steps: {asked}"
    return study.left(site, RULE, "an FSDP2 unit has no process_group", step, models=models)


def _is_of_mesh(models: frozenset[Constructor], study: Study) -> bool:
    """Whether the last dimension of a model's mesh certainly has the ranks that share its shards,
    and every parameter has that mesh. That of NO_SHARD has one rank each."""
    told = study.cache(_names_each_strategy)
    met = [(strategies.possible if told else strategies.strategies_of)(c, study) for c in models]
    return not study.may_ignore(models) and all(
        names and names <= strategies.MEMBERS - {"NO_SHARD"} for names in met
    )


def _names_each_strategy(study: Study) -> bool:
    """Whether the project names strategies by their members alone: none comes from elsewhere."""
    modules = [m for m in study.project.modules if m.mentions(ENUM)]
    nodes = ((node, module) for module in modules for node in ast.walk(module.source.tree))
    return not any(_may_be_any(node, module) for node, module in nodes)


def _may_be_any(node: ast.AST, module: Module) -> bool:
    """Whether the enumeration itself is used here, of which any member may be taken."""
    match node:
        case ast.alias(name=name, asname=str()):
            return name.endswith(ENUM)
        case ast.Constant(value=str(text)):
            return ENUM in text
        case ast.Name() | ast.Attribute() if last_name(node) == ENUM:
            parent = module.table.parents[node]
            return not (isinstance(parent, ast.Attribute) and parent.attr in strategies.MEMBERS)
    return False


def _of_mesh(site: Site, models: frozenset[Constructor], study: Study) -> Decision:
    """Ask the mesh of a parameter, which it has while it is sharded."""
    name = site.attribute.attr
    proposal = study.proposal()
    asked = f"next({{m}}.parameters()).device_mesh.{METHODS[name]}(-1)"
    proposal.replace(site.module, site.attribute, code(asked, m=site.subject))
    message = "that of the mesh that shards it"
    return study.rewritten(site, RULE, message, proposal, models=models, review=GATHERED)


GATHERED = (
    "between a forward and its backward, and after an evaluation, the root's parameters are whole "
    "and have no mesh: if this is asked then, ask it before"
)


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
