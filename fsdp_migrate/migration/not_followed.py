"""Where models go that nothing here follows: what is done with them there was not looked at."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Display, External, Made
from fsdp_migrate.families.checkpoints import copied_models
from fsdp_migrate.families.checkpoints.held_optimizers import is_given_optimizer
from fsdp_migrate.families.checkpoints.holders import SAVING
from fsdp_migrate.families.checkpoints.state_owners import sharded_inside, taken_out
from fsdp_migrate.families.modules import (
    exact_classes,
    own_classes,
    own_classes_of_parts,
    replaced_parameters,
    unit_attributes,
    unseen_models,
)
from fsdp_migrate.families.modules.dispatched import dispatched_calls
from fsdp_migrate.families.parameters import distant_optimizers, distant_parameters
from fsdp_migrate.families.parameters.hidden_parameters import (
    ParameterWays,
    are_parameters,
    hidden_parameters,
)
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.parameters.parameter_owners import (
    GROUPS,
    models_of_optimizer,
    sharded,
    with_holders,
)
from fsdp_migrate.families.training_loop import swallowed_errors
from fsdp_migrate.families.wrapping import own_names, sharded_parts, stored_models
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1 import (
    class_questions,
    model_attributes,
    model_values,
    unfollowed,
)
from fsdp_migrate.migration import handed_out
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.result import NotFollowed
from fsdp_migrate.syntax.expressions import given_arguments, last_name

STATES = frozenset({"state_dict", "load_state_dict"})
# Packages of torch's whose functions take models, by the word that names them somewhere.
TAKING_MODELS = {
    "torch.distributed.checkpoint.": "checkpoint",
    "torch.distributed.algorithms.": "algorithms",
    "torch.optim.swa_utils.": "swa_utils",
}
ANYTHING = "a state is asked of what may be a model, or anything else"
LOADED = "whole tensors may be loaded into what may be a sharded model, which stops the program"
Wanted = Callable[[Study, ast.expr, Module], bool]
BESIDE_OPTIMIZERS = re.compile(
    r"sched|scaler|loss|criterion|dataset|loader|sampler|args|config|cfg|metric|meter", re.I
)
MODELS = re.compile("model|net", re.I)  # as things are called that models went into
OF_UNITS = unit_attributes.NAMES | {"forward"}
BY_LINE = frozenset({ANYTHING, LOADED})  # the rest is named once in a file


class _Ways(NamedTuple):
    """How what concerns sharded models gets through what is not followed."""

    holders: unfollowed.Ways
    selves: unfollowed.Ways
    names: unfollowed.Ways
    parts: unfollowed.Ways
    optimizers: unfollowed.Ways
    parameters: ParameterWays


def _ways(study: Study) -> _Ways:
    def ways(wanted: Wanted) -> unfollowed.Ways:
        return unfollowed.Ways(partial(wanted, study), study.tracer)

    optimizers = replace(ways(_is_optimizer), others=BESIDE_OPTIMIZERS)
    parts = replace(ways(_is_part), by_text=True)
    parameters = ParameterWays(partial(are_parameters, study), study.tracer, by_text=True)
    selves = replace(ways(_is_taken_out), by_text=True)
    names = replace(ways(_is_wrapped), by_text=True)
    return _Ways(ways(_is_holder), selves, names, parts, optimizers, parameters)


def places(study: Study) -> list[NotFollowed]:
    """Every place that uses the parameters or modules of what may be a model, or the state of what
    may have some in it, once in each file for every function that may have made it of one."""
    if not study.constructors:
        return []
    every, _ = study.found or ([], set())
    sites = {node for site in every for node in (site.receiver, site.node)}
    found: dict[tuple[Module, str, int], NotFollowed] = {}
    for constructor, around in distant_optimizers.unseen_wraps(study):
        line, _ = constructor.module.position(constructor.call)
        name = distant_optimizers.called_by(around, constructor.module)
        why = f"an optimizer that is built before {name}() is called, out of sight, trains nothing"
        if constructor.wrapped not in sites:
            key = constructor.module, why, line
            found[key] = _not_followed(constructor.module, line, why)
    ways = _ways(study)
    for module in study.project.modules:
        unfollowed_here = _unfollowed(module, study, ways)
        parameters = hidden_parameters(module, study, ways.parameters, sites)
        swallowed = swallowed_errors.find_swallowed(study, module)
        hidden = distant_parameters.find_hidden(study, module)
        for node, why in (*unfollowed_here, *parameters, *swallowed, *hidden):
            line, _ = module.position(node)
            key = module, why, line if why in BY_LINE else 0
            if key not in found and node not in sites:
                found[key] = _not_followed(module, line, why)
    return list(found.values())


def _not_followed(module: Module, line: int, why: str) -> NotFollowed:
    cell, shown, _ = module.source.place(line)
    return NotFollowed(module.display, shown, why, cell)


def _unfollowed(module: Module, study: Study, ways: _Ways) -> Iterator[tuple[ast.expr, str]]:
    models = _models(module, study, ways.parts)
    holders = _holders(module, study, ways.holders)
    for node, why in (*models, *holders, *_selves(module, study, ways)):
        parent = module.table.parents[node]
        is_receiver = isinstance(parent, ast.Attribute) and parent.value is node
        if not is_receiver or study.seen.settled_at(node, module) is None:
            yield node, why
    yield from _optimizers(module, study, ways.optimizers)
    yield from handed_out.calls(module, study)
    yield from _parts(module, study)


def _models(module: Module, study: Study, parts: unfollowed.Ways) -> Iterator[tuple[ast.expr, str]]:
    """What may be a model or a part of one, and has its parameters, modules or methods asked
    for."""
    for node in _asked(module, study):
        if model_values.models(study.values(node, module), study.tracer):
            continue
        why = unfollowed.made_of_model(node, module, study.tracer)
        if not why and not _is_holder(study, node, module):
            why = parts.made_of(node, module)
        if why:
            yield node, why
    for attribute in module.table.attributes_by_name.of(OF_UNITS):
        if why := parts.made_of(attribute.value, module):
            yield attribute.value, why


def _is_part(study: Study, node: ast.expr, module: Module) -> bool:
    """Whether an expression is a part of a sharded model, as far as it tells what it is."""
    if unfollowed.OTHER_OBJECTS.search(last_name(node)):
        return False
    made = [v.callee for v in study.values(node, module) if isinstance(v, Made)]
    if made and not any(_is_module(each, study) for each in made):
        return False
    holders = (sharded(each, module, study) for each in with_holders(node))
    return any(holders) or bool(own_classes_of_parts.whole_of(node, study, module))


def _is_module(callee: External | Class | None, study: Study) -> bool:
    if isinstance(callee, Class):
        return stored_models.is_module(callee, study)
    return callee is not None and own_classes_of_parts.is_class_of_modules(callee.name)


def _is_holder(study: Study, node: ast.expr, module: Module) -> bool:
    lists = (isinstance(value, Display) for value in study.values(node, module))
    return not any(lists) and bool(sharded_inside(node, module, study))


def _holders(
    module: Module, study: Study, holders: unfollowed.Ways
) -> Iterator[tuple[ast.expr, str]]:
    """What may have a sharded part in it and is asked for its state or its parameters, and what may
    be anything and is asked for its state."""
    for attribute in module.table.attributes_by_name.of(fsdp1.STATE_METHODS | METHODS):
        node = attribute.value
        if why := holders.made_of(node, module):
            if not _is_holder(study, node, module):
                yield node, why
        elif why := _given(attribute, module, study, holders):
            yield node, why
        elif attribute.attr in STATES and unseen_models.may_be_sharded(node, module, study):
            yield node, ANYTHING if attribute.attr == "state_dict" else LOADED
    for call in model_attributes.calls_about_states(study.tracer, module):
        for node in given_arguments(call):
            if why := holders.made_of(node, module):
                yield call, why


def _given(attribute: ast.Attribute, module: Module, study: Study, holders: unfollowed.Ways) -> str:
    """Why what something is asked for may be that of a model that it was given."""
    node = attribute.value
    if why := _given_to_parts(node, module, study, holders):
        return why
    return _given_elsewhere(node, module, study) if attribute.attr in STATES else ""


def _given_to_parts(node: ast.expr, module: Module, study: Study, holders: unfollowed.Ways) -> str:
    """Why a module that is made of others may have a sharded one in it: ``Box(passed(model))``."""
    if _is_holder(study, node, module) or study.traced(node, module):
        return ""
    asked = [(node, module)]
    known: set[ast.AST] = set()
    while asked:
        for value in study.values(*asked.pop()):
            if value.node in known or not isinstance(value, (Display, Made)):
                continue
            known.add(value.node)
            is_module = isinstance(value, Display) or _is_module(value.callee, study)
            for given in _parts_given(value.node) if is_module else ():
                why = unfollowed.made_of_model(given, value.module, study.tracer)
                if why := why or holders.made_of(given, value.module):
                    return why
                asked.append((given, value.module))
    return ""


def _given_elsewhere(node: ast.expr, module: Module, study: Study) -> str:
    """Why an object of a class that nobody here reads may have a model in its state: it is given
    one, or one is stored in it."""
    if unfollowed.OTHER_OBJECTS.search(last_name(node)):
        return ""
    for value in study.values(node, module):
        callee = value.callee if isinstance(value, Made) else None
        if not isinstance(callee, External) or not handed_out.is_outside(callee, study):
            continue
        if unfollowed.OTHER_OBJECTS.search(callee.name.rpartition(".")[2]):
            continue  # build_optimizer(model)
        given = (study.traced(each, value.module) for each in _parts_given(value.node))
        if any(given) or sharded_parts.stored_in(value.node, study):
            name = callee.name.rpartition(".")[2]
            return f"what {name}() does with a model is not followed"
    return ""


def _parts_given(node: ast.AST) -> list[ast.expr]:
    """What a call or a list that is written out is given."""
    match node:
        case ast.Call():
            return given_arguments(node)
        case ast.List(elts=given) | ast.Tuple(elts=given) | ast.Dict(values=given):
            return given
    return []


def _is_taken_out(study: Study, node: ast.expr, module: Module) -> bool:
    return bool(taken_out(node, module, study))


def _is_wrapped(study: Study, node: ast.expr, module: Module) -> bool:
    return bool(own_names.wrapped_by_now(node, module, study))


def _selves(module: Module, study: Study, ways: _Ways) -> Iterator[tuple[ast.expr, str]]:
    """What may be ``self``, a part of a sharded model or what one is made of, in another guise, and
    is asked for its state."""
    for attribute in module.table.attributes_by_name.of(STATES | {SAVING}):
        node = attribute.value
        if _is_holder(study, node, module):
            continue
        why = ways.selves.made_of(node, module)
        if not why and not own_names.is_another(node, module, study):
            why = ways.names.made_of(node, module)
        if why:
            yield node, why


def _parts(module: Module, study: Study) -> Iterator[tuple[ast.expr, str]]:
    """What may be a part of a model, or one of several things of which a model is one, and is asked
    whether it is of a class that sharded modules have."""
    for call in module.table.calls_by_name.of(("isinstance",)) if study.constructors else ():
        question = class_questions.asked(call)
        if question is None:
            continue
        subject, asked = question
        classes = class_questions.classes(asked, module, study.tracer) or ()
        if not any(isinstance(each, Class) for each in classes):
            continue

        def is_part(node: ast.expr, where: Module, asked: ast.expr = asked) -> bool:
            return own_classes.concerns(node, asked, study, where, module) == ""

        ways = unfollowed.Ways(is_part, study.tracer, by_text=True)
        if not is_part(subject, module) and (why := ways.made_of(subject, module)):
            yield subject, why


def _is_optimizer(study: Study, node: ast.expr, module: Module) -> bool:
    """Whether an expression is an optimizer that is given parameters of a sharded model, as far as
    that is known."""
    known = any(is_given_optimizer(value, study) for value in study.values(node, module))
    return known and bool(models_of_optimizer(node, study, module))


def _optimizers(
    module: Module, study: Study, optimizers: unfollowed.Ways
) -> Iterator[tuple[ast.expr, str]]:
    """What may be an optimizer of a sharded model, and has its state or its groups asked for."""
    for attribute in module.table.attributes_by_name.of(STATES | {GROUPS}):
        node = attribute.value
        if _is_optimizer(study, node, module) or _is_called_a_model(node, module, study):
            continue
        if why := optimizers.made_of(node, module):
            yield node, why


def _is_called_a_model(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether something is called a model, and may be one: not if only an optimizer made it."""
    return bool(MODELS.search(last_name(node))) and (
        study.traced(node, module)
        or bool(unfollowed.made_of_model(node, module, study.tracer))
        or not isinstance(node, (ast.Attribute, ast.Call, ast.Subscript))
    )


def _asked(module: Module, study: Study) -> Iterator[ast.expr]:
    """What has its parameters, modules, methods or class asked for."""
    names = fsdp1.INSIDE_MODELS | fsdp1.FIELDS
    for attribute in module.table.attributes_by_name.of(names):
        yield attribute.value
    for call in module.table.calls_by_name.of(("hasattr",)):
        match call.args:
            case [owner, ast.Constant(value=str(name))] if name in fsdp1.METHODS:
                yield owner
    for call in module.table.calls_by_name.of(("isinstance",)):
        question = class_questions.asked(call)
        if question is not None and class_questions.classes(question[1], module, study.tracer):
            yield question[0]
    table = module.table
    for kind in (*table.calls_by_name.named("type"), *table.attributes_by_name.named("__class__")):
        subject = class_questions.classified(kind)
        if subject is not None and not exact_classes.is_said(kind, module):
            yield subject
    for call in module.table.calls if module.mentions(*TAKING_MODELS.values()) else ():
        if any(n.startswith(tuple(TAKING_MODELS)) for n in study.external(call.func, module)):
            yield from given_arguments(call)
    yield from (subject for _, subject, _ in dispatched_calls(study, module))
    for call, construct in copied_models.copying_calls(study, module):
        if construct == copied_models.COPY:  # what is pickled is a state as a rule
            yield from call.args[:1]
    for _, owner in replaced_parameters.replacing(study, module):
        yield owner
        yield from (n for n in ast.walk(owner) if isinstance(n, (ast.Name, ast.Call)))
    for attribute in module.table.attributes_by_name.of(study.cache(_own_methods)):
        yield attribute.value


def _own_methods(study: Study) -> frozenset[str]:
    """The names of the methods, but forward, that the classes of models have themselves."""
    return frozenset(
        method.name
        for cls in study.cache(exact_classes.sharded_classes)
        for method in getattr(cls, "body", ())
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
    ) - {"forward", "train", "eval"}
