"""Get a model's state with `get_model_state_dict`."""

import ast
from dataclasses import replace

from fsdp_migrate.families.checkpoints import (
    compiled_models,
    expressed_settings,
    first_rank,
    hoisting,
    hoisting_places,
    holders,
    native_states,
    other_wrappers,
    settings_in_force,
    snapshots,
    state_dict_settings,
    written_states,
)
from fsdp_migrate.families.checkpoints.state_options import state_options
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside
from fsdp_migrate.families.modules import unseen_models
from fsdp_migrate.families.wrapping import gathered, meshes, strategies
from fsdp_migrate.families.wrapping.own_names import wrapped_by_now
from fsdp_migrate.families.wrapping.sharded_parts import sharded_parts
from fsdp_migrate.fsdp1 import declared
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.forms import Form
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.seen import seen_in_run
from fsdp_migrate.planning.shard_plan import DCP

RULE = Rule(
    code="FSDP302",
    name="model_state_dict",
    handles=("FullyShardedDataParallel.state_dict", "state of an unseen model"),
    finders=(Finder(120, holders.find_calls_on_holders), Finder(241, unseen_models.find_states)),
)

STATE, COPY = "a state that may hold the parameters", Form("a copy of the state")
IN_PIECES = (
    "FSDP1 gave this rank's pieces of the parameters that are in no unit inside, since the module "
    "was asked that is in its wrapper, and not the model; now all of them are whole"
)
APART = "a state with copies of what is sharded alone"  # FSDP1's held the very buffers


def decide(site: Site, study: Study) -> Decision:
    if site.construct == unseen_models.STATE:
        return unseen_models.decide_unseen(site, study, RULE.code)
    return _of_model(site, study)


def _of_model(site: Site, study: Study) -> Decision:
    found = study.models(site.subject, site.module)
    parts = sharded_inside(site.subject, site.module, study)
    models = parts.constructors or found.constructors
    if parts and (native := native_states.decide(site, RULE.code, models, study)):
        return native
    setting = settings_in_force.setting_at(site.node, site.module, models, study)
    setting = state_dict_settings.effective_setting(setting, models, study)
    # DCP knows one first rank, FSDP1 one for each group of ranks that shard a model, and what is
    # around sharded parts was on every rank.
    several = bool(parts) or not all(meshes.is_sharded_by_all(m, study) for m in models)
    told, at_run_time = expressed_settings.choose(setting, site, study)
    problem = "" if told or at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    own_state = other_wrappers.own_states(found, "state_dict", study)
    problem = _asked_otherwise(site) or problem
    if own_state and not problem and (parts or at_run_time or setting.kind != "FULL"):
        problem = "the model may also be of a class of the project's with a state_dict of its own"
    whole = setting.kind == "FULL"
    if (setting.gone or (whole and not problem)) and gathered.gathers(site.subject, site.module):
        return study.kept_as_is(site, RULE.code, "kept, of whole parameters", models=models)
    if own := state_dict_settings.kept_own(setting, site, RULE.code, models, study):
        return own
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use get_model_state_dict with the StateDictOptions that are meant",
            models=models,
            quiet=True,
            unknown_state=unknown,
        )
    found_at = (
        hoisting_places.standing(site, (site.subject,), study)
        if whole
        else hoisting_places.Standing()
    )
    if at_run_time:
        return _at_run_time(site, found_at, models, study)
    proposal = study.proposal()
    place = found_at.place
    first = place is not None and hoisting.is_saved_by_first(site, place, study)
    if first and setting == state_dict_settings.DEFAULT:
        setting = replace(setting, offload=True, rank0_only=True)
    others = (
        own_state
        or any("DistributedDataParallel" in getattr(v, "made_by", "") for v in found.others)
        or declared.model(frozenset(found.others), study.tracer).other
    )
    elsewhere = several if setting.rank0_only else setting.offload
    if whole and elsewhere and not first_rank.is_read_by_first(site, place, study):
        new, message = _by_support(site, setting, proposal, place)
        if own_state:
            new = _of_others(new, site, proposal, place, study, models, is_whole=True)
    else:
        new, message = _new(site, setting, proposal, place, told)
        kept = _outlives(site, models, study, aliases=told is not None or not whole)
        form = _form(site, study, kept=kept, apart=whole and not setting.offload and told is None)
        if form != STATE:
            apart = form == APART or (parts and whole)
            new = (_copied_parts if apart else _copied)(new, site, proposal, place)
            message = f"a copy of {message}"
        if others and whole:
            new = _of_others(new, site, proposal, place, study, models, is_whole=not parts)
    if place is not None:
        message += f", gathered above '{place.guard}'"
    message = seen_in_run(message, found_at.shown)
    review, marked = hoisting.hoist(site, found_at, new, "state", proposal, RULE.code)
    review = review or expressed_settings.doubt(told, site, place, study)
    review = review or setting.doubt or _said(site, study)
    if others and not whole:
        marked = False
        review = "the model may also be wrapped by DDP here, whose 'module.' prefix is now removed"
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, marked=marked
    )


def _outlives(site: Site, models: frozenset[Constructor], study: Study, *, aliases: bool) -> bool:
    """Whether a state has to be a copy: it is kept, or is written to where its tensors may be the
    parameters, as those of a replicated model are and all where it ``aliases`` them."""
    replicated = any("NO_SHARD" in strategies.possible(m, study) for m in models)
    aliases = aliases or replicated
    if snapshots.is_kept(site, study, aliases=aliases):
        return True
    return aliases and written_states.is_written_to(site, study, loads=replicated)


def _said(site: Site, study: Study) -> str:
    asked = site.subject, site.module, study
    inside = not study.traced(site.subject, site.module) and not sharded_parts(*asked)
    if (
        inside
        and wrapped_by_now(*asked)
        and not gathered.is_gathered(site.node, study, site.module)
    ):
        return IN_PIECES
    return compiled_models.said_of_names(site.subject, site.module, study)


def _asked_otherwise(site: Site) -> str:
    """Why a state is asked for in a way that torch's function does not take, or an empty text."""
    if not isinstance(site.node, ast.Call):
        return "the state_dict method is passed on as a value"
    if site.node.args or site.node.keywords:
        return "state_dict() is called with arguments"
    return ""


def _at_run_time(
    site: Site, found: hoisting_places.Standing, models: frozenset[Constructor], study: Study
) -> Decision:
    """The model knows which state it gives, once it was set to one."""
    proposal = study.proposal()
    message, review, marked = "kept: the model is set to the state it gives", "", False
    model = hoisting.expression_at(site.subject, found.place)
    new = code("{m}.state_dict()", m=model)
    surely = settings_in_force.is_surely_set(site.node, site.module, models, study)
    if not surely:
        message = "model_state_dict"
        near = site.node if found.place is None else found.place.statement
        new = code("{f}({m})", f=proposal.support(site.module, message, near), m=model)
    if found.place is not None or not surely:
        review, marked = hoisting.hoist(site, found, new, "state", proposal, RULE.code)
    if found.place is not None:
        message += f", gathered above '{found.place.guard}'"
    if not marked:
        review = review or _said(site, study)
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, marked=marked
    )


def _new(
    site: Site,
    setting: state_dict_settings.Setting,
    proposal: Proposal,
    place: hoisting_places.Place | None,
    told: expressed_settings.Expressed | None,
) -> tuple[Code, str]:
    """The call that gives the same state, and what it is called in reports."""
    module = site.module
    near = site.node if place is None else place.statement
    model = hoisting.expression_at(site.subject, place)
    get = proposal.name(module, DCP, "get_model_state_dict", near)
    if told:
        options = expressed_settings.options(told, module, near, proposal)
        return code("{g}({m}, options={o})", g=get, m=model, o=options), "get_model_state_dict"
    flags = ["full_state_dict=True"] if setting.kind == "FULL" else []
    flags += ["cpu_offload=True"] if setting.offload or setting.rank0_only else []
    if flags:
        maker = proposal.name(module, DCP, "StateDictOptions", near)
        options = state_options(maker, ", ".join(flags))
        new = code("{g}({m}, options={o})", g=get, m=model, o=options)
    else:
        new = code("{g}({m})", g=get, m=model)
    return new, f"get_model_state_dict ({setting})"


def _copied(
    state: Code, site: Site, proposal: Proposal, place: hoisting_places.Place | None
) -> Code:
    """A state in tensors that no training changes."""
    near = site.node if place is None else place.statement
    copying = proposal.name(site.module, "copy", "deepcopy", near)
    return code("{c}({s})", c=copying, s=state)


def _form(site: Site, study: Study, *, kept: bool, apart: bool) -> str:
    """How a state that may be ``kept`` is given; ``apart`` tells whether it can be by parts."""
    state = Form(STATE, enough=not kept)
    return study.take(site, state, COPY, Form(APART, enough=apart))


def _copied_parts(
    state: Code, site: Site, proposal: Proposal, place: hoisting_places.Place | None
) -> Code:
    """A whole ``state`` in which what is sharded is copied, and nothing else is, as in FSDP1."""
    near = site.node if place is None else place.statement
    name = proposal.fresh(site.module, site.node, "name", loop=True)
    value = proposal.fresh(site.module, site.node, "value", loop=True)
    return code(
        f"{{{{{name}: {value}.full_tensor().clone() if isinstance({value}, {{d}}) else {value}"
        f" for {name}, {value} in {{g}}({{m}}).items()}}}}",
        d=proposal.name(site.module, "torch.distributed.tensor", "DTensor", near),
        g=proposal.name(site.module, DCP, "get_model_state_dict", near),
        m=hoisting.expression_at(site.subject, place),
    )


def _of_others(
    state: Code,
    site: Site,
    proposal: Proposal,
    place: hoisting_places.Place | None,
    study: Study,
    models: frozenset[Constructor],
    *,
    is_whole: bool,
) -> Code:
    """A state in which DDP's model keeps the names that it has in files."""
    near = site.node if place is None else place.statement
    model = hoisting.expression_at(site.subject, place)
    own = code("{m}.state_dict()", m=model)
    chosen = other_wrappers.choice(
        *(state, own, model, site.module, near, study, proposal), models=models, is_whole=is_whole
    )
    return code("({a} if {t} else {b})", a=chosen.where_true, t=chosen.test, b=chosen.otherwise)


def _by_support(
    site: Site,
    setting: state_dict_settings.Setting,
    proposal: Proposal,
    place: hoisting_places.Place | None,
) -> tuple[Code, str]:
    """A state that torch gives to the first rank alone, or leaves on the device."""
    near = site.node if place is None else place.statement
    model = hoisting.expression_at(site.subject, place)
    if not setting.rank0_only:
        get = proposal.name(site.module, DCP, "get_model_state_dict", near)
        message = "whole_on_cpu"
        function = proposal.support(site.module, message, near)
        return code("{f}({g}({m}))", f=function, g=get, m=model), message
    message = "full_model_state"
    function = proposal.support(site.module, message, near)
    return code("{f}({m}, cpu_offload={c})", f=function, m=model, c=str(setting.offload)), message
