"""Give whole states to `save_pretrained` and to functions of other libraries."""

import ast

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.families.checkpoints import (
    given_states,
    hoisting_places,
    holders,
    pretrained,
    settings_in_force,
    state_dict_contexts,
    state_dict_settings,
)
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside
from fsdp_migrate.fsdp1.model_attributes import STATE_FUNCTION
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Code, code
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.planning.shard_plan import DCP
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import COMPREHENSIONS

RULE = Rule(
    code="FSDP308",
    name="save_pretrained",
    handles=(
        "FullyShardedDataParallel.save_pretrained",
        "function that asks a model for its state",
    ),
)


def decide(site: Site, study: Study) -> Decision:
    if site.construct == STATE_FUNCTION:
        return _function(site, site.subject, study)
    inside = sharded_inside(site.subject, site.module, study).constructors
    models = inside or study.models(site.subject, site.module).constructors
    call = site.node
    if isinstance(call, ast.Call) and pretrained.may_be_of_diffusers(models, study):
        return _function(site, site.subject, study, pretrained.ASKS_ITSELF)
    if isinstance(call, ast.Call) and pretrained.is_given_state(call, site.module):
        message = "already given its state"
        return study.rewritten(site, RULE.code, message, models=models, review=pretrained.NAMED)
    if not isinstance(call, ast.Call) or any(k.arg is None for k in call.keywords):
        return study.left(
            site,
            RULE.code,
            "the arguments of save_pretrained cannot be read",
            "gather the state on every rank and pass it as state_dict=",
            models=models,
            quiet=True,
        )
    found = hoisting_places.standing(site, (site.subject,), study, fixed=True)
    proposal = study.proposal()
    get = proposal.name(site.module, DCP, "get_model_state_dict", call)
    options = proposal.name(site.module, DCP, "StateDictOptions", call)
    state = code(
        "{g}({m}, options={o}(full_state_dict=True))",
        g=get,
        m=ast.unparse(site.subject),
        o=options,
    )
    proposal.add_keyword(site.module, call, "state_dict", state)
    message = "given the whole state"
    is_unit = not inside or any(c.may_have("auto_wrap_policy") for c in models)
    review = found.review or (pretrained.NAMED if is_unit else "")
    return study.rewritten(site, RULE.code, message, proposal, models=models, review=review)


HELP = "call it on every rank, in a statement of its own, and give it the whole state"


def _function(site: Site, model: ast.expr, study: Study, review: str = "") -> Decision:
    """A function of another library that asks the model by itself."""
    module = site.module
    parts = sharded_inside(model, module, study)
    models = parts.constructors or study.models(model, module).constructors
    setting = settings_in_force.setting_at(site.node, module, models, study)
    at_run_time = state_dict_settings.is_for_run_time(setting, study)
    at_run_time = at_run_time and settings_in_force.is_surely_set(site.node, module, models, study)
    if setting.problem and not at_run_time:
        return study.left(
            site, RULE.code, setting.problem, HELP, models=models, quiet=True, unknown_state=True
        )
    call = site.call
    given = given_states.can_be_given(call, module, study)
    if given is not None and not review:
        proposal = study.proposal()
        review, marked = given_states.give(site, model, given, proposal, study, RULE.code)
        message = "given the whole state"
        return study.rewritten(
            site, RULE.code, message, proposal, models=models, review=review, marked=marked
        )
    earlier = _before(site, study)
    others = [e for e in earlier if e.receiver and ast.unparse(e.receiver) != ast.unparse(model)]
    kept = ""
    if at_run_time:
        kept = "kept: the model is set to the state it gives"
    elif setting.kind != "FULL":
        kept = "kept: a model gives its shards"
    elif not review and state_dict_contexts.is_in_context(call, module, models, study):
        kept = "kept: the context says which state it is"
    elif earlier and not others:
        kept = "in the context of the call before it"
    if kept:
        return study.rewritten(site, RULE.code, kept, models=models)
    found = hoisting_places.standing(site, (model,), study, fixed=True)
    new = _in_context(site)
    if new is None or access_path(model) is None or others:
        problem = "no statement can stand around it that asks for the whole state"
        return study.left(site, RULE.code, problem, HELP, models=models, quiet=True)
    new = present(new)
    proposal = study.proposal()
    flags = [", cpu_offload=True"] if setting.offload else []
    flags += [", rank0_only=True"] if setting.rank0_only else []
    head = code(
        "with {c}({m}{f}):",
        c=proposal.support(module, "whole_states", call),
        m=ast.unparse(model),
        f="".join(flags),
    )
    block = code("{h}\n    {s}{r}", h=head, s=new, r=_remark(site))
    proposal.replace_statement(module, site.statement, block)
    message = "whole_states around it"
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=found.review or review
    )


def _before(site: Site, study: Study) -> list[Site]:
    """Other such calls in the statement, which come first."""
    return [
        other
        for other in holders.find_functions_asking(study, site.module)
        if other.statement is site.statement and other.position < site.position
    ]


def _remark(site: Site) -> str:
    """The comment behind the statement, to stay there."""
    last = site.statement.end_lineno or site.statement.lineno
    found = site.module.source.comments(last, last)
    return f"  {found[0][2]}" if found else ""


def _in_context(site: Site) -> Code | None:
    """The statement of a call, to stand in a block; None if it cannot."""
    statement, table = site.statement, site.module.table
    for parent in table.ancestors(site.node):
        if parent is statement:
            break
        if isinstance(parent, (ast.Lambda, *COMPREHENSIONS)):
            return None
    match statement:
        case ast.Expr(value=value):
            return code("{v}", v=value)
        case ast.Return(value=ast.expr() as value):
            return code("return {v}", v=value)
        case ast.Assign(targets=[target], value=value):
            return code("{t} = {v}", t=target, v=value)
        case ast.AnnAssign(target=target, annotation=kind, value=ast.expr() as value):
            return code("{t}: {k} = {v}", t=target, k=kind, v=value)
    return None
