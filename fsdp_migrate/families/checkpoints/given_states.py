"""Functions of other libraries that ask a model for its state, unless they are given one.

``peft.get_peft_model_state_dict(model)`` takes ``state_dict=``: the whole state, as FSDP1 gave it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints import (
    first_rank,
    hoisting,
    hoisting_places,
    settings_in_force,
    snapshots,
)
from fsdp_migrate.families.checkpoints.compiled_models import may_be_compiled
from fsdp_migrate.families.checkpoints.state_options import state_options
from fsdp_migrate.families.wrapping import meshes, strategies
from fsdp_migrate.families.wrapping.sharded_parts import sharded_parts
from fsdp_migrate.fsdp1.api import PACKAGE
from fsdp_migrate.fsdp1.model_attributes import STATE_FUNCTION
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.shard_plan import DCP

# DCP looks for every name of a state in the model, and 4-bit layers give names that are in none.
FOUR_BITS = ("load_in_4bit", "Linear4bit", "Params4bit")
LIBRARY, FUNCTION = "peft.", "get_peft_model_state_dict"
ARGUMENT = "state_dict"


@dataclass(frozen=True)
class Given:
    """The options of the state that a call is to be given, and where that is got."""

    options: str
    found: hoisting_places.Standing


def can_be_given(call: ast.Call, module: Module, study: Study) -> Given | None:
    """How a call is given the whole state; None if it asks for another, or by other means."""
    match call:
        case ast.Call(args=[model, *rest]) if not rest and access_path(model) is not None:
            pass
        case _:
            return None
    names = study.external(call.func, module)
    known = bool(names) and all(n.startswith(LIBRARY) and n.endswith(FUNCTION) for n in names)
    if not known or any(k.arg in (None, ARGUMENT) for k in call.keywords):
        return None
    models = study.models(model, module).constructors
    if not models or strategies.is_replicated(models, study):
        return None
    setting = settings_in_force.setting_at(call, module, models, study)
    if setting.problem or setting.kind != "FULL" or sharded_parts(model, module, study):
        return None
    site = Site(STATE_FUNCTION, module, call, call.func, model)
    found = hoisting_places.standing(site, (model,), study)
    offload = setting.offload or setting.rank0_only
    # torch gives what it takes to the CPU to the first rank alone.
    several = not all(meshes.is_sharded_by_all(each, study) for each in models)
    elsewhere = several if setting.rank0_only else setting.offload
    if elsewhere and not first_rank.is_read_by_first(site, found.place, study):
        return None
    if snapshots.is_kept(site, study):
        return None  # on one rank it may hold the parameters
    return Given("full_state_dict=True" + ", cpu_offload=True" * offload, found)


def give(
    site: Site, model: ast.expr, given: Given, proposal: Proposal, study: Study, rule: str
) -> tuple[str, bool]:
    """Give a call the state, which every rank gets above a condition on the rank; none for a model
    of 4 bits that is not sharded.

    Returns:
        What may differ, for a review, and whether it is marked already.
    """
    module, place = site.module, given.found.place
    near = site.node if place is None else place.statement
    state = code(
        "{g}({m}, options={o})",
        g=proposal.name(module, DCP, "get_model_state_dict", near),
        m=hoisting.expression_at(model, place),
        o=state_options(proposal.name(module, DCP, "StateDictOptions", near), given.options),
    )
    found = study.models(model, module)
    plain = not found.certain and not may_be_compiled(found.constructors, study)
    if plain and study.project.mentions(*FOUR_BITS):
        state = code(
            "{s} if isinstance({m}, {c}) else None",
            s=state,
            m=hoisting.expression_at(model, place),
            c=proposal.name(module, PACKAGE, "FSDPModule", near),
        )
    if place is None:
        proposal.add_keyword(module, site.call, ARGUMENT, state)
        return given.found.review, False
    name, marked = hoisting.computed_above(site, place, state, "state", proposal, rule)
    proposal.add_keyword(module, site.call, ARGUMENT, code("{n}", n=name))
    return marked or given.found.review, bool(marked)
