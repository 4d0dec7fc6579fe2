"""Remove the `state_dict_type` context: FSDP2 chooses at the call."""

import ast
from collections.abc import Iterable
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Function
from fsdp_migrate.families.checkpoints import (
    asked_below,
    expressed_settings,
    given_states,
    holders,
    optimizer_states,
    own_managers,
    ranks,
    settings_in_force,
    sharded_files,
    state_dict_contexts,
    state_dict_settings,
)
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside
from fsdp_migrate.families.wrapping import passed_arguments, stored_models
from fsdp_migrate.fsdp1 import state_types
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.forms import AT_EACH_CALL, IN_THE_MODEL, Form
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.planning.rule import Rule
from fsdp_migrate.syntax.expressions import first_argument, given_arguments
from fsdp_migrate.syntax.trees import FUNCTIONS

RULE = Rule(
    code="FSDP301",
    name="state_dict_context",
    handles=("FullyShardedDataParallel.state_dict_type",),
)


# Methods of a model that do not ask for its state.
STATES = frozenset({"state_dict", "load_state_dict", "save_pretrained"})
OTHERS = ("optim", "sched", "scaler", "loader", "sampler")  # that have states of their own
# What torch makes of these has a state of its own as well, whatever it is called.
TORCHS_OTHERS = ("torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch.utils.data.")
SETTINGS = frozenset({"args", "cfg", "config", "configs", "hparams", "settings"})  # that may, too
MOST = 100  # functions of the project that are looked into
QUIET_METHODS = frozenset(
    {"train", "eval", "parameters", "named_parameters", "modules", "named_modules", "zero_grad"}
)
ELSEWHERE = (
    "callers outside the given paths that enter {}() have to give get_model_state_dict the "
    "StateDictOptions that are meant"
)
RAISED = "for names of kinds that {}() does not know it raised an error: now they give shards"
BY_SOME = (
    "some ranks alone ask for a state in the context, of an object that is not known: if a model's "
    "is in it, get_model_state_dict has to be called for that on every rank before"
)
GETS_SHARDS = "if it asks for the model's state, it gets shards now"


def decide(site: Site, study: Study) -> Decision:
    call = site.node
    if not isinstance(call, ast.Call) or call.func is not site.reference:
        return study.left(
            site,
            RULE.code,
            f"{ast.unparse(site.reference)} is passed on as a value",
            "call it in a with statement, and run again",
            models=study.every_constructor,
            quiet=True,
        )
    models = state_dict_settings.models_concerned(first_argument(call), site.module, study)
    if why := state_types.refused(call):
        return study.left(
            site,
            RULE.code,
            f"FSDP1's state_dict_type {why}: the call raises TypeError",
            "drop the context, and give get_model_state_dict the StateDictOptions that are meant",
            models=models,
        )
    setting = state_dict_settings.read_setting(call, site.module, study)
    place = _item(site, call)
    own = own_managers.entered(call, site.module, study)
    function, entered = own or (None, [])
    made = [
        own_managers.setting_made(each, function, call, site.module, study)
        for each in entered
        if function is not None
    ]
    if function is not None and all(
        not setting_there.problem or _is_chosen(each, setting_there, study)
        for each, setting_there in zip(entered, made, strict=True)
    ):
        felt = any(
            _is_felt_in(each, setting_there, site, study)
            for each, setting_there in zip(entered, made, strict=True)
        )
        form = study.take(site, Form(AT_EACH_CALL.name, enough=not felt), IN_THE_MODEL)
        if form == IN_THE_MODEL.name:
            return _kept(site, study, models)
        return _without_manager(function, entered, made, site, study, models)
    if place is None:
        return _kept(site, study, models)
    statement, index = place
    told = bool(setting.problem)
    if told and not expressed_settings.expressed(setting, statement.body[0], site.module, study):
        return _kept(site, study, models)
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for b in statement.body for n in ast.walk(b)):
        return _kept(site, study, models)  # other code runs in it
    # Sharded states are what a model gives of itself: nobody need be told.
    is_full = setting.kind == "FULL"
    felt = is_full and _is_felt_elsewhere(statement, call, site, study, is_here=told, by_some=told)
    felt = felt or asked_below.is_asked_below(statement.body, setting, site.module, study)
    read = Form(AT_EACH_CALL.name, enough=not felt)
    if study.take(site, read, IN_THE_MODEL) == IN_THE_MODEL.name:
        return _kept(site, study, models)
    proposal = study.proposal()
    proposal.unwrap(site.module, statement, index)
    if told:
        proposal.claims.kept.add(call)  # the calls inside read its arguments
        kind = expressed_settings.written_kind(call, site.module, study)
        proposal.claims.gone |= {kind} if kind is not None else set()
        message = "context removed, its calls say the kind"
    else:
        message = f"context removed ({setting})"
    review = sharded_files.review(setting, models, study, site.module)
    if not told and setting.kind == "FULL":
        by_some = _is_felt_elsewhere(statement, call, site, study, is_here=False)
        review = review or (BY_SOME if by_some else _doubt(statement, site, study))
    once = sharded_files.is_of_program(review)
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, once=once
    )


def _is_chosen(
    entered: own_managers.Entered, setting: state_dict_settings.Setting, study: Study
) -> bool:
    """Whether the calls in a block can tell the kind by what the context manager was given."""
    here = replace(setting, entered=entered.call)
    first = entered.statement.body[0]
    return expressed_settings.expressed(here, first, entered.module, study) is not None


def _is_felt_in(
    entered: own_managers.Entered, setting: state_dict_settings.Setting, site: Site, study: Study
) -> bool:
    """Whether something in a block that a context manager of the project's is for has to be told
    the kind of state in another way than by the calls there."""
    if study.run_time_states and settings_in_force.setters(study):
        return True
    statement, call, module = entered.statement, entered.call, entered.module
    inside = [n for body in statement.body for n in ast.walk(body)]
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in inside):
        return True  # other code runs in it
    here = replace(site, module=module, node=call, reference=call.func)
    told = bool(setting.problem)
    if setting.kind == "FULL" and _is_felt_elsewhere(statement, call, here, study, is_here=told):
        return True
    return asked_below.is_asked_below(statement.body, setting, module, study)


def _without_manager(
    function: ast.FunctionDef,
    entered: list[own_managers.Entered],
    made: list[state_dict_settings.Setting],
    site: Site,
    study: Study,
    models: Iterable[Constructor],
) -> Decision:
    """Remove a context manager of the project's own that did nothing else, with its blocks."""
    proposal = study.proposal()
    proposal.delete(site.module, function)
    proposal.claims.gone.add(function)
    items: dict[ast.With, list[int]] = {}
    for each in entered:
        items.setdefault(each.statement, []).append(each.index)
    for each in entered:
        if each.statement in items:
            proposal.unwrap(each.module, each.statement, *items.pop(each.statement))
    told = dict.fromkeys("as told" if setting.problem else str(setting) for setting in made)
    message = f"{function.name}() removed ({', '.join(told)})"
    reviews = [*dict.fromkeys(sharded_files.review(s, models, study, site.module) for s in made)]
    if any(setting.problem for setting in made):
        reviews.append(RAISED.format(function.name))
    if passed_arguments.may_be_called_elsewhere(function, site.module):
        reviews.append(ELSEWHERE.format(function.name))
    review = "; ".join(filter(None, reviews))
    if review:
        proposal.mark(entered[0].module, entered[0].call, RULE.code, sentences(review))
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, marked=True
    )


def _kept(site: Site, study: Study, models: Iterable[Constructor]) -> Decision:
    """Keep the context, as one of the support module's."""
    proposal = study.proposal()
    name = proposal.support(site.module, "state_dict_type", site.node)
    proposal.replace(site.module, site.mention, code("{n}", n=name))
    proposal.claims.kept.add(site.node)
    setting = state_dict_settings.read_setting(site.call, site.module, study)
    review = sharded_files.review(setting, models, study, site.module)
    message = "state_dict_type"
    once = sharded_files.is_of_program(review)
    return study.rewritten(
        site, RULE.code, message, proposal, models=models, review=review, once=once
    )


def _item(site: Site, call: ast.Call) -> tuple[ast.With | ast.AsyncWith, int] | None:
    item = site.module.table.parents[call]
    if not isinstance(item, ast.withitem) or item.optional_vars is not None:
        return None
    statement = site.module.table.parents[item]
    assert isinstance(statement, (ast.With, ast.AsyncWith))
    return statement, statement.items.index(item)


def _is_felt_elsewhere(
    statement: ast.With | ast.AsyncWith,
    context: ast.Call,
    site: Site,
    study: Study,
    *,
    is_here: bool,
    by_some: bool = True,
) -> bool:
    """Whether code that is not rewritten here asks for a state in the block.

    Args:
        is_here: the kind is known in the block, and not in functions that are called there.
        by_some: what only some ranks ask of an object that is not known counts as well. A model
            gathers its state with all of them.
    """
    inside = {node for body in statement.body for node in ast.walk(body)}
    # What is defined in the block is read here with the rest of it.
    seen: set[ast.AST] = set() if is_here else {n for n in inside if isinstance(n, FUNCTIONS)}
    reads = optimizer_states.sharded_reads(site) if is_here else []
    gone = {node for read in reads for node in ast.walk(read)} | {context}
    return any(
        node not in gone and _asks(node, site.module, study, seen, is_here=is_here, by_some=by_some)
        for node in inside
        if isinstance(node, ast.Call)
    )


def _asks(
    call: ast.Call,
    module: Module,
    study: Study,
    seen: set[ast.AST],
    *,
    is_here: bool,
    by_some: bool,
    is_below: bool = False,
) -> bool:
    """Whether a call may ask for a state; ``seen`` are the functions that are looked into."""
    method = call.func if isinstance(call.func, ast.Attribute) else None
    names = study.external(call.func, module)
    if any(name.startswith("torch.") for name in names):
        # Outside of the block FSDP's functions ask which kind is set.
        return is_here and is_below and any("optim_state_dict" in name for name in names)
    if method is not None and method.attr in STATES:
        path = (access_path(method.value) or "").lower()
        if any(word in path for word in OTHERS) or _is_other(method.value, module, study):
            return False
        if path.rpartition(".")[2] in SETTINGS and not _may_be_module(method.value, module, study):
            return False
        parts = sharded_inside(method.value, module, study)
        is_site = parts or study.models(method.value, module)
        if not is_site:
            return by_some or ranks.guard(call, module) is None
        return is_here and is_below
    functions = [v for v in study.values(call.func, module) if isinstance(v, Function)]
    if functions:
        return any(
            _does_ask(each, study, seen, is_here=is_here, by_some=by_some) for each in functions
        )
    if bool(names) and all(name.startswith("builtins.") for name in names):
        return False
    if not is_here and given_states.can_be_given(call, module, study) is not None:
        return all(site.node is not call for site in holders.find_functions_asking(study, module))
    passed = given_arguments(call)
    if any(study.models(a, module) or sharded_inside(a, module, study) for a in passed):
        return True  # somebody outside has the model
    if method is None or not study.models(method.value, module) or method.attr in QUIET_METHODS:
        return False
    own = state_dict_contexts.methods_of_modules(method.attr, study)
    if not own:
        return is_below or not _is_for_parameters(method.attr)
    return any(_does_ask(each, study, seen, is_here=is_here, by_some=by_some) for each in own)


def _is_other(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression is surely a scheduler, an optimizer or something else of torch's that
    is no module."""
    made = {
        getattr(v, "made_by", "") or getattr(v, "value", "") for v in study.values(node, module)
    }
    made.discard(None)  # of one that is only made under a condition
    return bool(made) and all(str(name).startswith(TORCHS_OTHERS) for name in made)


def _may_be_module(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether one of the project's modules is made in sight for an expression."""
    callees = (getattr(value, "callee", None) for value in study.values(node, module))
    return any(isinstance(cls, Class) and stored_models.is_module(cls, study) for cls in callees)


def _is_for_parameters(name: str) -> bool:
    """Whether a method of a class that nobody knows is about parameters, by its name: those are
    the same in any context."""
    return "param" in name and "state" not in name


def _doubt(statement: ast.With | ast.AsyncWith, site: Site, study: Study) -> str:
    """What has to be judged of methods that are not known to ask for no state."""
    module = site.module
    for call in (n for each in statement.body for n in ast.walk(each) if isinstance(n, ast.Call)):
        method = call.func if isinstance(call.func, ast.Attribute) else None
        if method is None or method.attr in QUIET_METHODS or not _is_for_parameters(method.attr):
            continue
        known = any(isinstance(v, Function) for v in study.values(method, module))
        known = known or bool(state_dict_contexts.methods_of_modules(method.attr, study))
        if not known and study.models(method.value, module):
            return f"the model's {method.attr}() ran in the context: {GETS_SHARDS}"
    return ""


def _does_ask(
    function: Function, study: Study, seen: set[ast.AST], *, is_here: bool, by_some: bool
) -> bool:
    if function.node in seen:
        return False
    seen.add(function.node)
    return len(seen) > MOST or any(
        _asks(node, function.module, study, seen, is_here=is_here, by_some=by_some, is_below=True)
        for node in ast.walk(function.node)
        if isinstance(node, ast.Call)
    )
