"""What FSDP1 models are asked for, or have set, that means something else, or nothing, in FSDP2."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.tracer import Tracer
from fsdp_migrate.analysis.values import Class, Constant, Made, Values, is_open
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import inner_questions, possible_models, state_types
from fsdp_migrate.fsdp1.construct import Construct, ConstructKind
from fsdp_migrate.fsdp1.model_values import (
    is_class_of_models,
    is_model,
    is_taken_for_model,
    models,
    told_elsewhere,
)
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.fsdp1.unfollowed import handed_out, made_of_model
from fsdp_migrate.syntax.expressions import given_arguments, last_name


def methods(
    tracer: Tracer,
    module: Module,
    *,
    has_fsdp: bool,
    makes_models: bool = False,
    among: Collection[ast.AST] | None = None,
) -> Iterator[Site]:
    """Attributes of FSDP1 models that mean something else, or nothing, on FSDP2 models.

    In a module that refers to FSDP1 (``has_fsdp``), names that only FSDP1 has are taken for them on
    any object. Where the project ``makes_models``, methods that only FSDP1's models have are sites
    on what may be one as well, with the doubt. No others are asked about than those ``among`` some
    nodes, where these are given.
    """
    told: set[tuple[str, str]] = set()  # what is not followed is said once in a file, and of states
    for attribute in _named(fsdp1.OF_MODELS | fsdp1.STATICS, module, among):
        if not isinstance(attribute.ctx, ast.Load):
            continue
        found = tracer.evaluate(attribute.value, module)
        if attribute.attr in fsdp1.STATICS and _is_inherited(found, attribute.attr, tracer):
            static = Construct.of_model(attribute.attr)
            yield Site(static, module, _call_of(attribute, module), attribute)
            continue
        if _is_of_another_class(attribute, found, module, tracer):
            continue
        is_read = attribute.attr in fsdp1.STATICS and _call_of(attribute, module) is attribute
        if is_read and _is_set(attribute.attr, tracer):
            continue  # a setting that models of a derived class keep under a method's name
        if attribute.attr == "params" and _is_asked_for_no_list(attribute, module):
            continue
        known = any(is_model(v, tracer) for v in found)
        surely = has_fsdp and (
            attribute.attr in fsdp1.UNMISTAKABLE or _is_strategy(attribute, module, tracer)
        )
        if surely and is_open(frozenset(v for v in found if not _is_taken(v))):
            known = True
        known = known or tracer.shown(attribute.value, module) is True
        doubt = ""
        if not known and not is_taken_for_model(attribute.value, module, tracer):
            if makes_models:
                doubt = told_elsewhere(attribute.value, module, tracer)
                doubt = doubt or possible_models.doubt(attribute, module, tracer)
                doubt = doubt or made_of_model(attribute.value, module, tracer)
                doubt = doubt or handed_out(attribute.value, attribute.attr, module, tracer)
            if doubt and tracer.settled(attribute.value, module) is False:
                continue
            if doubt and attribute.attr == "module" and _is_one_way(attribute, module):
                continue
            key = doubt, attribute.attr if attribute.attr in OF_STATE else ""
            if not doubt or key in told:
                continue
            if attribute.attr not in fsdp1.ONLY_MODELS:
                told.add(key)
        if attribute.attr not in OF_STATE and _has_own(
            models(found, tracer), attribute.attr, tracer
        ):
            continue  # of a class derived from FSDP's, under the same name
        construct = Construct.of_model(attribute.attr)
        node = _call_of(attribute, module)
        yield Site(construct, module, node, attribute, attribute.value, doubt)
    yield from _fields(tracer, module, among, has_fsdp=has_fsdp)
    yield from _replaced(tracer, module, among)


def _named(
    names: Collection[str], module: Module, among: Collection[ast.AST] | None
) -> list[ast.Attribute]:
    """The attributes of some names, of those that are asked about."""
    found = module.table.attributes_by_name.of(names)
    return found if among is None else [each for each in found if each in among]


def _is_one_way(attribute: ast.Attribute, module: Module) -> bool:
    """Whether ``hasattr(model, "module")`` is asked first, and else the model is taken."""
    asking = inner_questions.asked_first(attribute, module)
    return asking is not None and inner_questions.takes_model_itself(asking, attribute)


def _is_taken(value: object) -> bool:
    """Whether a value is what ``next`` or ``getattr`` gives, of which nothing is known."""
    return isinstance(value, Made) and value.made_by in {"builtins.next", "builtins.getattr"}


def _is_of_another_class(
    attribute: ast.Attribute, found: Values, module: Module, tracer: Tracer
) -> bool:
    """Whether a state, or a kind of it, is asked for in a way that FSDP1's models refuse: another
    class's method, to which none of them gets."""
    if attribute.attr in KINDS and not models(found, tracer):
        call = _call_of(attribute, module)
        return isinstance(call, ast.Call) and bool(state_types.refused(call))
    return has_foreign_keyword(attribute, module) and not any(
        isinstance(v.callee, Class) for v in models(found, tracer)
    )


def has_foreign_keyword(attribute: ast.Attribute, module: Module) -> bool:
    """Whether a method is given by name what a module's does not take:
    ``state_dict(only_rank_0=True)``."""
    call = module.table.parents[attribute]
    if attribute.attr not in STATE_KEYWORDS or not isinstance(call, ast.Call):
        return False
    names = {k.arg for k in call.keywords if k.arg is not None}
    return call.func is attribute and not names <= STATE_KEYWORDS[attribute.attr]


def _is_asked_for_no_list(attribute: ast.Attribute, module: Module) -> bool:
    """Whether something is asked of ``model.params`` that FSDP1's, a list, has not: it is what the
    project's own models have under that name."""
    asked = module.table.parents[attribute]
    return isinstance(asked, ast.Attribute) and not hasattr(list, asked.attr)


def _call_of(attribute: ast.Attribute, module: Module) -> ast.expr:
    """The call of a method, or the attribute where it is not called."""
    parent = module.table.parents[attribute]
    return parent if isinstance(parent, ast.Call) and parent.func is attribute else attribute


def _is_inherited(found: Values, name: str, tracer: Tracer) -> bool:
    """Whether a static method of FSDP1's is asked of classes derived from it."""
    classes = [v for v in found if isinstance(v, Class) and is_class_of_models(v, tracer)]
    own = any(tracer.has_attribute(cls, name) for cls in classes)
    return bool(classes) and len(classes) == len(found) and not own


def _replaced(tracer: Tracer, module: Module, among: Collection[ast.AST] | None) -> Iterator[Site]:
    """Methods that a model is given in the place of FSDP1's, which migrated code does not call:
    ``model.clip_grad_norm_ = lambda norm: None``."""
    for attribute in _named(fsdp1.ONLY_MODELS, module, among):
        if not isinstance(attribute.ctx, ast.Store):
            continue
        found = models(tracer.evaluate(attribute.value, module), tracer)
        if found and not _has_own(found, attribute.attr, tracer):
            construct = Construct(ConstructKind.REPLACED, f"{fsdp1.FSDP}.{attribute.attr}")
            yield Site(construct, module, attribute, attribute, attribute.value)


def _fields(
    tracer: Tracer, module: Module, among: Collection[ast.AST] | None, *, has_fsdp: bool
) -> Iterator[Site]:
    """What code reads of the settings that FSDP1 models keep, and of their flat parameters.

    The former have common names, so that they count on what is known to be a model alone, unless
    the project sets them; the latter, in a module that refers to FSDP1 (``has_fsdp``), on whatever
    nothing is known about.
    """
    for attribute in _named(fsdp1.FIELDS | fsdp1.FLAT_FIELDS, module, among):
        if not isinstance(attribute.ctx, ast.Load):
            continue
        if attribute.attr in fsdp1.FIELDS:
            found = models(tracer.evaluate(attribute.value, module), tracer)
            wrapped = any(not isinstance(v.callee, Class) for v in found)
            inherited = found and not _has_own(found, attribute.attr, tracer)
            if (wrapped or inherited) and not _is_set(attribute.attr, tracer):
                yield Site(
                    Construct.of_model(attribute.attr),
                    module,
                    attribute,
                    attribute,
                    attribute.value,
                )
        elif has_fsdp and attribute.attr in fsdp1.FLAT_FIELDS:
            kinds = tracer.evaluate(attribute.value, module)
            if is_open(kinds):
                yield Site(
                    Construct(ConstructKind.MEMBER, FLAT, attribute.attr),
                    module,
                    attribute,
                    attribute,
                    attribute.value,
                )


STATE_KEYWORDS = {
    "state_dict": frozenset({"destination", "prefix", "keep_vars"}),
    "load_state_dict": frozenset({"state_dict", "strict", "assign"}),
}
KINDS = frozenset({"state_dict_type", "set_state_dict_type"})
FLAT = "FlatParameter"
STRATEGY = "sharding_strategy"
OF_STATE = fsdp1.STATE_METHODS | {fsdp1.FORWARD}


def _has_own(found: list[Made], name: str, tracer: Tracer) -> bool:
    """Whether all these models are of classes of the project's that have such an attribute."""
    classes = [v.callee for v in found if isinstance(v.callee, Class)]
    return (
        bool(found)
        and len(classes) == len(found)
        and all(tracer.has_attribute(cls, name) for cls in classes)
    )


def _is_set(name: str, tracer: Tracer) -> bool:
    """Whether the project gives some FSDP1 model an attribute of that name."""
    return any(
        isinstance(attribute.ctx, ast.Store)
        and bool(models(tracer.evaluate(attribute.value, module), tracer))
        for module in tracer.project.modules
        if module.mentions(name)
        for attribute in module.table.attributes_by_name.named(name)
    )


def _is_strategy(attribute: ast.Attribute, module: Module, tracer: Tracer) -> bool:
    """``x.sharding_strategy`` compared with a member of FSDP1's enum, unless ``x`` is settings."""
    compared = module.table.parents[attribute]
    if attribute.attr != STRATEGY or not isinstance(compared, ast.Compare):
        return False
    return any(
        (fsdp1.canonical(name) or "").startswith("ShardingStrategy.")
        for side in (compared.left, *compared.comparators)
        for name in tracer.project.external(side, module)
    ) and not _is_settings(attribute.value, module, tracer)


def _is_settings(node: ast.expr, module: Module, tracer: Tracer) -> bool:
    """Whether a model is made with the strategy of this object: no model is made yet then."""
    found = {v for v in tracer.evaluate(node, module) if not isinstance(v, Constant)}
    for where in tracer.project.modules:
        named = where.table.attributes_by_name.named(STRATEGY) if where.mentions(STRATEGY) else ()
        for given in named:
            match where.table.parents[given]:
                case ast.keyword(arg="sharding_strategy"):
                    if not found.isdisjoint(tracer.evaluate(given.value, where)):
                        return True
    return False


def attribute_checks(tracer: Tracer, module: Module) -> Iterator[Site]:
    """``hasattr(model, "clip_grad_norm_")`` and the like: how code tells FSDP1 models."""
    for call in module.table.calls_by_name.named("hasattr"):
        match call:
            case ast.Call(
                func=ast.Name(id="hasattr"), args=[model, ast.Constant(value=str(name))]
            ) if name in TELLING and models(tracer.evaluate(model, module), tracer):
                yield Site(Construct(ConstructKind.HASATTR, fsdp1.FSDP), module, call, call, model)


def state_functions(
    tracer: Tracer, module: Module, has_parts: Callable[[ast.expr], bool]
) -> Iterator[Site]:
    """Calls of other libraries' functions that ask a model for its state, or load one into it.

    ``peft.get_peft_model_state_dict(model)``, ``safetensors.torch.save_model(model, path)``: their
    names say so, and they are given an FSDP1 model, or a module that holds some, or what a
    context around them takes for a model.
    """
    for call in calls_about_states(tracer, module):
        for given in given_arguments(call):
            known = models(tracer.evaluate(given, module), tracer) or has_parts(given)
            if known or is_taken_for_model(given, module, tracer):
                yield Site(STATE_FUNCTION, module, call, call.func, given)
                break
            if doubt := made_of_model(given, module, tracer):
                yield Site(STATE_FUNCTION, module, call, call.func, given, doubt)
                break


def calls_about_states(tracer: Tracer, module: Module) -> Iterator[ast.Call]:
    """Every call of another library's function whose name says that it is about states."""
    renamed = {b.name for b in module.table.imports if _is_about_states(b.qualified)}
    for call in module.table.calls:
        func = call.func
        name = last_name(func)
        if name not in renamed and not _is_about_states(name):
            continue
        if any(k.arg == "state_dict" for k in call.keywords) and not name.startswith(LOADING):
            continue  # it is given the state
        names = tracer.project.external(func, module)
        if names and not any(n.split(".")[0] in OWN_WAYS for n in names):
            yield call


def _is_about_states(name: str) -> bool:
    last = name.rpartition(".")[2]
    return "state_dict" in last or last in WHOLE_MODELS


STATE_FUNCTION = Construct.parse("function that asks a model for its state")
LOADING = ("load", "set")
WHOLE_MODELS = frozenset({"save_model", "load_model"})
OWN_WAYS = frozenset({"torch", "builtins", "mlflow"})  # which pickles models; torch knows its own


def divide_factors(tracer: Tracer, module: Module) -> Iterator[Site]:
    """What is set, or read, of the factors by which FSDP1 divides gradients.

    Nothing but FSDP1's modules has attributes of these names, so that they count on any object
    that nothing is known about.
    """
    for attribute in module.table.attributes_by_name.of(DIVIDE_FACTORS):
        yield from _divide_factor(attribute, attribute.value, tracer, module)
    for call in module.table.calls_by_name.of(("setattr", "getattr", "hasattr")):
        match call:
            case ast.Call(
                func=ast.Name(id="setattr" | "getattr" | "hasattr"),
                args=[owner, ast.Constant(value=str(name)), *_],
            ) if name in DIVIDE_FACTORS:
                yield from _divide_factor(call, owner, tracer, module)


def _divide_factor(
    node: ast.expr, owner: ast.expr, tracer: Tracer, module: Module
) -> Iterator[Site]:
    found = tracer.evaluate(owner, module)
    if is_open(found) or any(is_model(v, tracer) for v in found):
        yield Site(DIVIDE_FACTOR, module, node, node, owner)


DIVIDE_FACTOR = Construct.parse("gradient divide factor")
DIVIDE_FACTORS = frozenset({"_gradient_predivide_factor", "_gradient_postdivide_factor"})
TELLING = frozenset({"clip_grad_norm_", "no_sync"})
