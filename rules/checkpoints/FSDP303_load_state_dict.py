"""Load a whole model state into sharded parameters."""

import ast

from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.checkpoints import (
    expressed_settings,
    loaded_states,
    native_states,
    other_wrappers,
    own_states,
    settings_in_force,
    state_dict_settings,
    training_order,
)
from fsdp_migrate.families.checkpoints.state_options import state_options
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside
from fsdp_migrate.families.modules import unseen_models
from fsdp_migrate.families.wrapping import gathered
from fsdp_migrate.families.wrapping.own_names import in_wrapper
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code, join
from fsdp_migrate.planning.forms import Form
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.proposal import Proposal
from fsdp_migrate.planning.rule import Finder, Rule
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.expressions import bind_arguments
from fsdp_migrate.syntax.kinds import present

RULE = Rule(
    code="FSDP303",
    name="load_state_dict",
    handles=("FullyShardedDataParallel.load_state_dict", "state loaded into an unseen model"),
    finders=(Finder(242, unseen_models.find_loads),),
)

IN_PIECES = (
    "FSDP1 took this rank's pieces of the parameters that are in no unit inside, and stopped at "
    "others, since the module was asked that is in its wrapper; now all of them are whole"
)
# Each rank takes its own part of its own state, buffers that differ from rank to rank included.
BY_ENTRY = Form("a load that shards every entry by itself")


def decide(site: Site, study: Study) -> Decision:
    if site.construct == unseen_models.LOAD:
        return unseen_models.decide_unseen(site, study, RULE.code)
    held = sharded_inside(site.subject, site.module, study)
    found = study.models(site.subject, site.module)
    models = held.constructors or found.constructors
    if held and (native := native_states.decide(site, RULE.code, models, study)):
        return native
    if isinstance(site.node, ast.Call) and own_states.is_converted(site.node, site.module, study):
        message = "kept: an optimizer's, which loads what FSDP1's functions give"
        return study.kept_as_is(site, RULE.code, message, models=models)
    setting = settings_in_force.setting_at(site.node, site.module, models, study)
    setting = state_dict_settings.effective_setting(setting, models, study)
    if own := state_dict_settings.kept_own(setting, site, RULE.code, models, study):
        return own
    told, at_run_time = expressed_settings.choose(setting, site, study)
    problem = "" if told or at_run_time else setting.problem
    unknown = bool(problem) and problem == setting.problem
    named = ("state_dict", "strict", "assign")
    bound = bind_arguments(site.node, named) if isinstance(site.node, ast.Call) else None
    own_state = other_wrappers.own_states(found, "load_state_dict", study)
    problem = _problem(site, bound, study, others=own_state) or problem
    if own_state and not problem and (held or at_run_time or setting.kind != "FULL"):
        problem = "the model may also be of a class of the project's that loads in its own way"
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "use set_model_state_dict with the StateDictOptions that are meant",
            models=models,
            quiet=own_state,
            unknown_state=unknown,
        )
    bound = present(bound)
    call = site.call
    surely = settings_in_force.is_surely_set(call, site.module, models, study)
    if at_run_time and surely:
        message = "kept: the model is set to the state it takes"
        return study.rewritten(site, RULE.code, message, models=models)
    proposal = study.proposal()
    module, state, strict = site.module, bound["state_dict"], bound.get("strict")
    others = any("DistributedDataParallel" in getattr(v, "made_by", "") for v in found.others)
    others = others or own_state
    if at_run_time or (setting.kind == "FULL" and _is_by_entry(site, models, study)):
        message = "load_model_state_dict" if at_run_time else "load_full_model"
        name = proposal.support(module, message, call)
        flag = code(", strict={s}", s=strict) if strict is not None else code("")
        new = code("{f}({m}, {s}{k})", f=name, m=site.subject, s=state, k=flag)
    else:
        message = "set_model_state_dict"
        whole = told.full if told else "True"
        new = _native(site, call, bound, models, setting, study, proposal, whole)
    chosen = None
    as_before = code("{c}", c=call)
    if not at_run_time and setting.kind == "FULL" and others:
        chosen = other_wrappers.choice(
            *(new, as_before, site.subject, module, call, study, proposal),
            models=models,
            is_whole=not held,
        )
    elif message == "set_model_state_dict" and loaded_states.may_have_no_group(
        call, module, models, study
    ):
        chosen = other_wrappers.by_group(new, as_before, module, call, proposal)
    if chosen is not None:
        other_wrappers.replace_by(chosen, module, call, proposal)
    else:
        proposal.replace(module, call, new)
    review = setting.doubt or _said(site, study)
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


def _said(site: Site, study: Study) -> str:
    return IN_PIECES if in_wrapper(site.subject, site.module, study) else ""


def _is_by_entry(site: Site, models: frozenset[Constructor], study: Study) -> bool:
    """Whether each entry of a whole state is sharded by itself."""
    needed = loaded_states.needs_support(site.node, site.module, models, study)
    form = study.take(site, Form("set_model_state_dict", enough=not needed), BY_ENTRY)
    return form == BY_ENTRY.name


def _problem(site: Site, bound: dict[str, ast.expr] | None, study: Study, *, others: bool) -> str:
    """Why torch's function would not do what the call does, or an empty text.

    Args:
        others: what is no model, and has such a method, is told apart and keeps it.
    """
    if bound is None or "state_dict" not in bound:
        return "its arguments cannot be read"
    if "assign" in bound:
        return "assign=True would leave the optimizer with the old parameters"
    if _is_among_others(site):
        return "an FSDP2 model loads into its sharded parameters, and they are whole here"
    if not others and _has_own_method(site, study):
        return "the model's class has a load_state_dict of its own, which torch would call"
    return ""


def _is_among_others(site: Site) -> bool:
    """Whether it is loaded within ``summon_full_params`` of the very model, which does not go."""
    blocks = site.module.table.ancestors(site.subject)
    alone = any(gathered.only_loads(each, site.subject) for each in blocks)
    return gathered.gathers(site.subject, site.module) and not alone


def _has_own_method(site: Site, study: Study) -> bool:
    """Whether the project gives the class of a model, or of what holds models, such a method."""
    classes = (getattr(v, "callee", None) for v in study.values(site.subject, site.module))
    return any(
        "load_state_dict" in each.module.table.scopes[each.node].bindings
        for cls in classes
        if isinstance(cls, Class)
        for each in study.tracer.lineage(cls)
    )


def _native(
    site: Site,
    call: ast.Call,
    bound: dict[str, ast.expr],
    models: frozenset[Constructor],
    setting: state_dict_settings.Setting,
    study: Study,
    proposal: Proposal,
    whole: str,
) -> Code:
    """The call of torch's that loads the state.

    Args:
        whole: the code that tells a whole state from a sharded one.
    """
    module = site.module
    if training_order.may_follow_evaluation(call, module, study):
        training_order.reshard_before(site.statement, site.subject, site, study, proposal)
    full = setting.kind == "FULL"
    again = full and loaded_states.is_read_again(bound["state_dict"], call, module)
    state = code("dict({s})" if again else "{s}", s=bound["state_dict"])
    flags = [code("full_state_dict={w}", w=whole)] if full else []
    strict = bound.get("strict")
    literal = study.literal(strict, module) if strict is not None else None
    is_strict = strict is None or (literal is not None and literal.value is True)
    if full and is_strict and not any(map(_may_have_group, models)):
        # Without it missing keys are no error.
        flags.append(code("broadcast_from_rank0={w}", w=whole))
    if strict is not None and not is_strict:
        flags.append(code("strict={s}", s=strict))
    options = code("")
    if flags:
        made_by = proposal.name(module, DCP, "StateDictOptions", call)
        options = code(", options={o}", o=state_options(made_by, join(", ", flags), load=True))
    function = proposal.name(module, DCP, "set_model_state_dict", call)
    return code("{f}({m}, {s}{o})", f=function, m=site.subject, s=state, o=options)


def _may_have_group(model: Constructor) -> bool:
    """Whether a model may be on some of the ranks only: a broadcast needs all of them."""
    return model.may_have("process_group") or model.may_have("device_mesh")
