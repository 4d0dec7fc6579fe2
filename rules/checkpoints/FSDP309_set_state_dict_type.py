"""Remove `set_state_dict_type`: FSDP2 chooses at the call."""

import ast
from collections.abc import Iterable

from fsdp_migrate.analysis.values import Made
from fsdp_migrate.families.checkpoints import (
    expressed_settings,
    kept_kinds,
    sharded_files,
    state_dict_settings,
)
from fsdp_migrate.families.checkpoints.state_dict_contexts import read_setting_at
from fsdp_migrate.families.wrapping.sharded_parts import sharded_parts
from fsdp_migrate.fsdp1 import state_types
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.forms import AT_EACH_CALL, IN_THE_MODEL
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import first_argument

RULE = Rule(
    code="FSDP309",
    name="set_state_dict_type",
    handles=(
        "FullyShardedDataParallel.set_state_dict_type",
        "FullyShardedDataParallel.get_state_dict_type",
    ),
)


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    model = first_argument(call) if isinstance(call, ast.Call) else None
    models = state_dict_settings.models_concerned(model, site.module, study)
    problem = ""
    setting = state_dict_settings.Setting()
    setter = isinstance(call, ast.Call) and site.construct.last != "get_state_dict_type"
    if setter and (why := state_types.refused(site.call)):
        return study.left(
            site,
            RULE.code,
            f"FSDP1's set_state_dict_type {why}: the call raises TypeError",
            "drop it, and give get_model_state_dict the StateDictOptions that are meant",
            models=models,
        )
    if study.run_time_states:
        return _kept(site, study, models)
    if site.construct.last == "get_state_dict_type":
        problem = "an FSDP2 model has no state dict type"
    elif not isinstance(call, ast.Call):
        problem = "set_state_dict_type is passed on as a value"
    elif not isinstance(site.statement, ast.Expr) or site.statement.value is not call:
        problem = "the previous settings that it returns are used"
    elif model is not None and _has_parts_alone(model, site, study):
        problem = "only parts of the model are sharded, which gives and takes its state by itself"
    else:
        setting = read_setting_at(call, site.module, study)
        problem = setting.problem
    unknown = setting.set_by  # the call, where its kind cannot be told
    told = unknown is not None and not setting.gone and problem == setting.problem
    if unknown is not None and told and kept_kinds.is_kept(unknown, site.module, study):
        return _asked_for(unknown, setting, site, study, models)
    if problem:
        return study.left(
            site,
            RULE.code,
            problem,
            "choose the StateDictOptions at each state dict call",
            models=models,
            quiet=True,
            unknown_state=True,
        )
    study.take(site, AT_EACH_CALL, IN_THE_MODEL)
    proposal = study.proposal()
    proposal.delete(site.module, site.statement)
    review = sharded_files.review(setting, models, study, site.module)
    return study.rewritten(
        site,
        RULE.code,
        "removed",
        proposal,
        models=models,
        review=review,
        once=sharded_files.is_of_program(review),
    )


def _asked_for(
    call: ast.Call,
    setting: state_dict_settings.Setting,
    site: Site,
    study: Study,
    models: Iterable[Constructor],
) -> Decision:
    """Remove the call, where the methods that ask for states read the kind off their object."""
    proposal = study.proposal()
    proposal.delete(site.module, site.statement)
    proposal.claims.kept.add(call)  # these calls read its arguments
    kind = expressed_settings.written_kind(call, site.module, study)
    proposal.claims.gone |= {kind} if kind is not None else set()
    review = sharded_files.review(setting, models, study, site.module)
    message = "removed, the calls say the kind"
    return study.rewritten(
        site,
        RULE.code,
        message,
        proposal,
        models=models,
        review=review,
        once=sharded_files.is_of_program(review),
    )


def _has_parts_alone(model: ast.expr, site: Site, study: Study) -> bool:
    """Whether a model is seen to be made, and not to be sharded, nor any part of it that is seen:
    its state dict calls are no sites, and have their setting from here."""
    found = study.models(model, site.module)
    if found or sharded_parts(model, site.module, study):
        return False
    return bool(found.others) and all(isinstance(v, Made) for v in found.others)


def _kept(site: Site, study: Study, models: Iterable[Constructor]) -> Decision:
    """Keep the call, as one of the support module's."""
    proposal = study.proposal()
    function = site.construct.last
    name = proposal.support(site.module, function, site.node)
    proposal.replace(site.module, site.mention, code("{n}", n=name))
    proposal.claims.kept.add(site.node)
    review = ""
    if function == "set_state_dict_type" and isinstance(site.node, ast.Call):
        setting = state_dict_settings.read_setting(site.node, site.module, study)
        review = sharded_files.review(setting, models, study, site.module)
    return study.rewritten(
        site,
        RULE.code,
        function,
        proposal,
        models=models,
        review=review,
        once=sharded_files.is_of_program(review),
    )
