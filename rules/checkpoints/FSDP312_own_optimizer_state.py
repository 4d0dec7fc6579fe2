"""What one rank saves of an optimizer's own state for all ranks."""

import ast

from fsdp_migrate.families.checkpoints import (
    first_rank,
    held_optimizers,
    hoisting,
    loaded_optimizers,
    optimizer_states,
    other_wrappers,
    own_states,
    training_order,
)
from fsdp_migrate.families.checkpoints.state_options import state_options
from fsdp_migrate.families.modules import freezing
from fsdp_migrate.fsdp1 import declared
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.kinds import present

RULE = Rule(
    code="FSDP312",
    name="own_optimizer_state",
    handles=("optimizer's own state", "optimizer's own load"),
    finders=(Finder(125, own_states.find_own_states),),
)

PART = (
    "one rank saves its own part of the optimizer's state here, as under FSDP1, and every rank "
    "resumes with that part; gather it on every rank with get_optimizer_state_dict"
)
OLD_PARTS = (
    "an optimizer's own state is this rank's part, by parameter now: files of it that FSDP1 wrote "
    "have parts of flat parameters, and are refused"
)
CHECK = "own_optimizer_state"
OLD = (
    "the state is whole now: files that FSDP1 wrote here have one rank's part of flat parameters, "
    "and do not load"
)


def decide(site: Site, study: Study) -> Decision:
    use = own_states.read(site, study)
    is_load = site.construct == own_states.LOAD
    if not own_states.are_gathered(site.module, study):
        if is_load and site.call.args:
            return _loaded_parts(site, use, study)
        review = OLD_PARTS if is_load else PART
        return study.kept_as_is(
            site, RULE.code, "kept: this rank's part", models=use.models, review=review
        )
    held = held_optimizers.held_optimizer(use.optimizer, site.module, study)
    return _loaded(site, use, held, study) if is_load else _saved(site, use, held, study)


def _loaded_parts(site: Site, use: own_states.Use, study: Study) -> Decision:
    """The load of what each rank saved, which refuses what FSDP1 saved."""
    proposal, module, state = study.proposal(), site.module, site.call.args[0]
    is_checked = isinstance(state, ast.Call) and ast.unparse(state.func).endswith(CHECK)
    if not is_checked:
        function = proposal.support(module, CHECK, state)
        new = code(f"{function}({{o}}, {{s}})", o=use.optimizer, s=state)
        proposal.replace(module, state, new)
    return study.rewritten(
        site,
        RULE.code,
        "this rank's part, and FSDP1's refused",
        proposal,
        models=use.models,
        review=OLD_PARTS,
    )


def _saved(site: Site, use: own_states.Use, held: held_optimizers.Held, study: Study) -> Decision:
    """The whole state, gathered where every rank comes by."""
    proposal, module = study.proposal(), site.module
    found = own_states.standing(site, use, study)
    place = found.place
    near = site.statement if place is None else place.statement
    if training_order.is_evaluated(study):
        training_order.reshard_before(near, present(use.model), site, study, proposal)
    model = hoisting.expression_at(present(use.model), place)
    optimizer = hoisting.expression_at(use.optimizer, place)
    # With cpu_offload the other ranks get nothing: the first ones of other nodes, say.
    first = first_rank.is_read_by_first(site, place, study)
    flags = "full_state_dict=True, cpu_offload=True" if first else "full_state_dict=True"
    new = code(
        "{g}({m}, {o}, options={s})",
        g=proposal.name(module, DCP, "get_optimizer_state_dict", near),
        m=model,
        o=held.of(optimizer),
        s=state_options(proposal.name(module, DCP, "StateDictOptions", near), flags),
    )
    if training_order.comes_before_training(site.node, module, study):
        own = code("{o}.state_dict()", o=optimizer)
        new = code("({n} if {o}.state else {d})", n=new, o=held.of(optimizer), d=own)
    if _may_be_another(use, site, study):
        own = code("{o}.state_dict()", o=optimizer)
        chosen = other_wrappers.choice(
            *(new, own, model, module, near, study, proposal), models=use.models, is_whole=True
        )
        new = code("({a} if {t} else {b})", a=chosen.where_true, t=chosen.test, b=chosen.otherwise)
    message = "get_optimizer_state_dict, which every rank takes part in"
    review, marked = hoisting.hoist(site, found, new, "optimizer_state", proposal, RULE.code)
    return study.rewritten(
        site, RULE.code, message, proposal, models=use.models, review=review, marked=marked
    )


def _loaded(site: Site, use: own_states.Use, held: held_optimizers.Held, study: Study) -> Decision:
    """The load of the whole state."""
    proposal, module, call = study.proposal(), site.module, site.call
    load = optimizer_states.Load(use.model, use.optimizer, call.args[0], call)
    if training_order.may_follow_evaluation(call, module, study):
        training_order.reshard_before(site.statement, present(use.model), site, study, proposal)
    loaded_optimizers.know_settings_of_schedulers(held, use.optimizer, site, study, proposal)
    lacks = freezing.is_frozen_in_between(study)
    new = loaded_optimizers.loaded(
        load, held, site, study, proposal, frozenset(), None, "", by_itself=lacks
    )
    if _may_be_another(use, site, study):
        chosen = other_wrappers.choice(
            new,
            code("{c}", c=call),
            present(use.model),
            module,
            call,
            study,
            proposal,
            models=use.models,
            is_whole=True,
        )
        other_wrappers.replace_by(chosen, module, call, proposal)
    else:
        proposal.replace(module, call, new)
    message = "set_optimizer_state_dict"
    return study.rewritten(site, RULE.code, message, proposal, models=use.models, review=OLD)


def _may_be_another(use: own_states.Use, site: Site, study: Study) -> bool:
    """Whether the model may be DDP's, or neither's, there."""
    others = study.models(present(use.model), site.module).others
    return any("DistributedDataParallel" in getattr(v, "made_by", "") for v in others) or (
        declared.model(frozenset(others), study.tracer).other
    )
