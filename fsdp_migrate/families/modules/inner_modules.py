"""``model.module`` and ``model._fsdp_wrapped_module``: an FSDP2 model has no module inside."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.checkpoints import pretrained, state_dict_settings
from fsdp_migrate.families.checkpoints.state_owners import STATES
from fsdp_migrate.families.names import own_wrappers
from fsdp_migrate.families.names.key_prefixes import PART
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.families.wrapping.own_names import in_wrapper, is_of_another
from fsdp_migrate.fsdp1 import inner_questions, unwrapping
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import code
from fsdp_migrate.planning.model import Constructor, Decision
from fsdp_migrate.planning.prose import sentences
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

RULE = "FSDP406"


def decide_inner_module(site: Site, study: Study) -> Decision:
    found = study.models(site.subject, site.module)
    around = {c for c in study.constructors.values() if c.keeps_class}
    asking = inner_questions.asked_first(site.attribute, site.module)
    skips = asking is not None and not inner_questions.has_other_way(asking, site.attribute)
    skips = skips and site.attribute.attr != PART  # FSDP2's class is asked for then
    if skips and found.constructors and around.isdisjoint(found.constructors):
        return study.kept_as_is(
            site,
            RULE,
            "kept, and not done for an FSDP2 model",
            models=found.constructors,
            review=inner_questions.NOT_DONE,
        )
    states = any(_inner_states(site, study))
    taken = states or _is_saved_by_diffusers(site, study)
    if found.certain and taken and not is_gathered(site.node, study, site.module):
        return study.left(
            site,
            RULE,
            "FSDP1 gave the state of the module inside as it held it, in parts of its flat "
            "parameters",
            "use get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))",
            models=found.constructors,
            quiet=True,
        )
    if not around.isdisjoint(found.constructors or study.constructors.values()):
        return _of_a_class(site, around, study)
    if unwrapping.is_taken_off_again(site.attribute, site.module, study.tracer):
        message = "kept for other wrappers: no FSDP2 model comes here"
        models = found.constructors or study.every_constructor
        return study.rewritten(site, RULE, message, models=models)
    if unwrapping.comes_back(site.attribute, site.module, study.tracer):
        return _of_recursion(site, found.constructors or study.every_constructor, study)
    # Nothing but FSDP1's wrapper has that attribute: where the line runs, it is one.
    only_fsdp1s = site.attribute.attr == PART and bool(study.constructors)
    if only_fsdp1s and not found.certain and study.cache(own_wrappers.hold_modules):
        return study.kept_as_is(
            site,
            RULE,
            "kept: a class of the project's own has this attribute",
            models=study.every_constructor,
            review="an FSDP2 model has no inner module, unlike the project's class",
        )
    if not found.certain and not (only_fsdp1s and not states):
        return _unwrap_any(site, found.constructors, study)
    models = found.constructors or study.every_constructor
    proposal = study.proposal()
    old, new = _same_either_way(site, study)
    proposal.replace(site.module, old, code("{m}", m=new))
    saved = [m for m in _methods_inside(site, study) if _is_pretrained(*m)]
    unsure = pretrained.may_be_of_diffusers(models, study)
    said = pretrained.PASSED_OVER if unsure else pretrained.NAMED
    for method, module in saved:
        proposal.mark(module, method, RULE, sentences(said))
    message, review = "the model itself", said if saved else ""
    return study.rewritten(site, RULE, message, proposal, models=models, review=review, marked=True)


def _same_either_way(site: Site, study: Study) -> tuple[ast.expr, ast.expr]:
    """What is replaced, and by what: ``model.module`` by the model itself; where that makes both
    arms of ``model.module.tag if hasattr(model, "module") else model.tag`` equal, all of it by the
    one arm."""
    alone = site.attribute, site.subject
    table, path = site.module.table, access_path(site.subject)
    child: ast.AST = site.attribute
    for parent in table.ancestors(child):
        if isinstance(parent, (ast.stmt, ast.Lambda)) or path is None:
            return alone
        if isinstance(parent, ast.IfExp):
            break
        child = parent
    else:
        return alone
    other = parent.orelse if child is parent.body else parent.body
    within = set(walk(child)) - {site.attribute}
    if child is parent.test or any(each.node in within for each in present(study.found)[0]):
        return alone  # a model is asked for more than a plain module, such as its state
    inside = f"{path}.{site.attribute.attr}"
    is_equal = ast.unparse(child).replace(inside, path) == ast.unparse(other)
    return (parent, other) if is_equal and _asks_alone(parent.test, path) else alone


def _asks_alone(test: ast.expr, path: str) -> bool:
    """Whether a test does nothing but ask: for a flag, or whether there is a module inside."""
    asked = test.operand if isinstance(test, ast.UnaryOp) else test
    match asked:
        case ast.Call(func=ast.Name(id="hasattr"), args=[owner, ast.Constant(value=name)]):
            return access_path(owner) == path and name in unwrapping.INNER
    return access_path(asked) is not None


def _is_saved_by_diffusers(site: Site, study: Study) -> bool:
    """Whether ``save_pretrained`` of diffusers is called on the module inside: it passes over a
    state that it is given, and asks for that of this module."""
    models = study.models(site.subject, site.module).constructors
    saved = any(method.attr == "save_pretrained" for method, _ in _methods_inside(site, study))
    return saved and pretrained.may_be_of_diffusers(models, study, surely=True)


def _of_recursion(site: Site, models: frozenset[Constructor], study: Study) -> Decision:
    """``return unwrap(m.module)`` in ``unwrap``, under no test of classes: it would not end."""
    if inner_questions.asked_first(site.attribute, site.module) or _may_fail(site):
        message = "kept: an FSDP2 model has no inner module, which is asked first"
        if site.attribute.attr == PART:
            return study.kept_as_is(site, RULE, message, models=models)
        return study.rewritten(site, RULE, message, models=models)
    reason = (
        "an FSDP2 model has no inner module, and taking wrappers off by recursion would not end"
    )
    help_ = "take off the other wrappers alone"
    return study.left(site, RULE, reason, help_, models=models, quiet=True)


def _may_fail(site: Site) -> bool:
    """Whether ``m.module`` stands in a ``try`` for what has none."""
    child: ast.AST = site.node
    for parent in site.module.table.ancestors(site.node):
        if isinstance(parent, FUNCTIONS):
            return False
        if isinstance(parent, ast.Try) and child in parent.body:
            named = (n for h in parent.handlers if h.type for n in ast.walk(h.type))
            return any(getattr(n, "id", "") == "AttributeError" for n in named)
        child = parent
    return False


def _of_a_class(site: Site, around: set[Constructor], study: Study) -> Decision:
    """``model.module`` of models whose class is derived from FSDP's and holds the module."""
    concerned = study.models(site.subject, site.module).constructors or around
    if not concerned <= around:
        return study.left(
            site,
            RULE,
            "the model may be of a class derived from FSDP's, which keeps the module in it, or not",
            "ask by class which it is",
            models=concerned,
            quiet=unwrapping.is_taken_off_again(site.attribute, site.module, study.tracer),
        )
    proposal = study.proposal()
    if site.attribute.attr != "module":
        proposal.replace(site.module, site.attribute, code("{m}.module", m=site.subject))
    message = "kept: the class has the module in it still"
    return study.rewritten(site, RULE, message, proposal, models=concerned)


def _unwrap_any(site: Site, models: frozenset[Constructor], study: Study) -> Decision:
    """``model.module`` of what may be FSDP's wrapper or another one, which still holds a module."""
    own = _own_inner_module(models, study)
    if not own and models and inner_questions.asked_first(site.attribute, site.module):
        message = "kept: an FSDP2 model has no inner module, which is asked first"
        return study.rewritten(site, RULE, message, models=models)
    is_path = access_path(site.subject) is not None
    named = is_path and site.attribute.attr == "module"
    reason = "the wrapper that is taken off here may be FSDP's or another one's"
    help_ = "an FSDP2 model has no inner module: use the model itself"
    if own:
        reason = "the model has an attribute module of its own, which would be taken for FSDP1's"
        help_ = "take the wrapper off by its class: model.module if it is the other one's"
        return study.left(site, RULE, reason, help_, models=models, quiet=True)
    if not models or not named or any(_inner_states(site, study)):
        return study.left(site, RULE, reason, help_, models=models)
    proposal = study.proposal()
    new = code('getattr({m}, "module", {n})', m=site.subject, n=ast.unparse(site.subject))
    if _is_asked_by_dcp(site, study):
        new = code("{m}", m=site.subject)
    proposal.replace(site.module, site.attribute, new)
    message = "the model itself, or what another wrapper holds"
    return study.rewritten(site, RULE, message, proposal, models=models)


def _is_asked_by_dcp(site: Site, study: Study) -> bool:
    """Whether torch's ``get_model_state_dict`` asks what the wrapper is taken off for. It leaves
    DDP's ``module.`` out of the names by itself; ``set_model_state_dict`` does not when rank 0
    broadcasts (``_load_model_state_dict`` in torch/distributed/checkpoint/state_dict.py)."""
    method = site.module.table.parents[site.attribute]
    others = study.models(site.subject, site.module).others
    return (
        isinstance(method, ast.Attribute)
        and method.attr == "state_dict"
        and all("DistributedDataParallel" in getattr(v, "made_by", "") for v in others)
        and bool(in_wrapper(site.attribute, site.module, study))
    )


def _own_inner_module(models: frozenset[Constructor], study: Study) -> bool:
    """Whether a wrapped model may have an attribute ``module`` of its own."""
    known: list[Class] = []
    for wrapped in (w for c in models for w in c.wraps):
        for value in study.values(wrapped.wrapped, wrapped.module):
            if isinstance(value, Made) and isinstance(value.callee, Class):
                known.append(value.callee)
    return any(_defines_module(related) for cls in known for related in study.tracer.family(cls))


def _defines_module(cls: Class) -> bool:
    if "module" in cls.module.table.scopes[cls.node].bindings:
        return True
    for node in ast.walk(cls.node):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr="module", ctx=ast.Store()):
                return True
            case ast.Call(
                func=ast.Attribute(attr="add_module" | "register_module" | "register_buffer"),
                args=[ast.Constant(value="module"), *_],
            ):
                return True
    return False


def _inner_states(site: Site, study: Study) -> Iterator[tuple[ast.Attribute, Module]]:
    """``model.module.state_dict()``, which would quietly become the shards of the model.

    Also of a name, an attribute, or a function's result that ``model.module`` becomes.
    """
    for method, module in _methods_inside(site, study):
        if method.attr in STATES and in_wrapper(method.value, module, study):
            continue  # a site of its own
        if _is_state(method, module) and not _in_context(method, module, study):
            yield method, module


def _methods_inside(site: Site, study: Study) -> Iterator[tuple[ast.Attribute, Module]]:
    """Where the module inside is asked for its state or saved; sites of the model are none."""
    for module in study.project.modules:
        for method in module.table.attributes_by_name.of(STATE):
            if method.value is site.reference:
                yield method, module
                continue
            inner = any(v.node is site.reference for v in study.values(method.value, module))
            if not inner or study.traced(method.value, module):
                continue
            if not is_of_another(site.subject, site.module, method.value, module, study):
                yield method, module


STATE = frozenset({"state_dict", "load_state_dict", "save_pretrained"})


def _is_state(method: ast.Attribute, module: Module) -> bool:
    if method.attr in {"state_dict", "load_state_dict"}:
        return True
    call = module.table.parents[method]
    if method.attr != "save_pretrained" or not isinstance(call, ast.Call):
        return False
    return all(k.arg not in {"state_dict", None} for k in call.keywords)


def _is_pretrained(method: ast.Attribute, module: Module) -> bool:
    """Whether a call of ``save_pretrained`` is given the state."""
    return method.attr == "save_pretrained" and not _is_state(method, module)


def _in_context(node: ast.AST, module: Module, study: Study) -> bool:
    return any(
        state_dict_settings.is_context(item.context_expr, module, study)
        for parent in module.table.ancestors(node)
        if isinstance(parent, ast.With)
        for item in parent.items
    )
