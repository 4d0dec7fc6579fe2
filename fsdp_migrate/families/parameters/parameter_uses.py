"""Code that handles the parameters of a sharded model one by one.

FSDP1 shows flat pieces of parameters (or one flat parameter a unit), FSDP2 ``DTensor`` parameters
of the whole shape. What reads shapes decides otherwise then, and assigning to ``.data`` of a
``DTensor`` does nothing, without an error. After an evaluation the root's parameters are plain
tensors: what is written to them is lost.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.counted_parameters import is_counted_over_ranks
from fsdp_migrate.families.parameters.given_back import models_given_back
from fsdp_migrate.families.parameters.listed_parameters import (
    FLATTENING,
    ITEMS,
    MEMBERS,
    parameters_in,
)
from fsdp_migrate.families.parameters.looped_parts import looped_over
from fsdp_migrate.families.parameters.other_names import whole_of
from fsdp_migrate.families.parameters.parameter_changes import (
    data_assignments,
    has_data_assignments,
    holder,
)
from fsdp_migrate.families.parameters.parameter_loops import (
    AROUND,
    BY_FLAT,
    COUNT,
    COUNTS,
    DATA,
    KEPT,
    LOOPED,
    METHODS,
    NAME,
    READ,
    REPLACED,
    SHAPE,
    UPDATE,
    called_by_name,
    gives_on,
    is_kept,
    loop_over,
    uses_in_loop,
    uses_of_variables,
)
from fsdp_migrate.families.parameters.parameter_numbers import REDUCED, find_numbers
from fsdp_migrate.families.parameters.parameter_owners import (
    GROUPS,
    is_apart,
    is_early,
    is_flat,
    may_be_flat,
    may_be_sharded,
    models_looped_over,
    models_of_list,
    models_of_optimizer,
    optimizer_of_group,
    sharded,
)
from fsdp_migrate.families.parameters.single_parameters import find_single_reads
from fsdp_migrate.families.parameters.state_uses import find_state_uses
from fsdp_migrate.families.parameters.stepped_parameters import find_stepped
from fsdp_migrate.families.training_loop import reductions
from fsdp_migrate.families.training_loop.applied_functions import MAP, applies
from fsdp_migrate.families.wrapping import strategies
from fsdp_migrate.families.wrapping.gathered import is_discarded, is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.scopes import Kind

NAMED = "named_parameters"


def find_parameter_uses(study: Study, module: Module) -> Iterator[Site]:
    """Sites for loops over parameters, and assignments to ``.data``."""
    found: dict[ast.AST, Construct] = {}
    for site in chain(_find(study, module), find_state_uses(study, module, found)):
        if site.node in found or is_apart(site, study) or is_early(site, study):
            continue
        found[site.node] = site.construct
        yield site


def _find(study: Study, module: Module) -> Iterator[Site]:
    yield from _of_models(study, module)
    yield from _of_optimizers(study, module)
    yield from find_stepped(study, module)
    yield from _of_lists(study, module)
    yield from _kept(study, module)
    yield from find_single_reads(study, module)


def _kept(study: Study, module: Module) -> Iterator[Site]:
    """``backup[name] = p.data`` in a file that assigns to ``.data``: what is kept is the memory of
    the parameter itself, which FSDP1 overwrote with what was assigned, at the next forward."""
    if not has_data_assignments(module):
        return
    for attribute in module.table.attributes_by_name.named("data"):
        if not isinstance(attribute.ctx, ast.Load) or not is_kept(attribute, module):
            continue
        source = source_of(attribute.value, study, module)
        if source is not None and not is_gathered(attribute, study, module):
            yield Site(KEPT, module, attribute, attribute, source)


def source_of(parameter: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The sharded model that a path to a parameter begins with, or the list that it comes from."""
    owner = parameter
    while isinstance(owner, (ast.Attribute, ast.Subscript)):
        owner = owner.value
        if study.traced(owner, module):
            return owner
    for definition in study.defined_by(parameter, module):
        listed = definition.value
        if definition.kind is Kind.ELEMENT and listed is not None:
            if models_of_list(listed, study, module):
                return listed
            looped = models_looped_over(listed, study, module)
            if looped:
                return next(iter(looped.values()))
    return None


def _of_models(study: Study, module: Module) -> Iterator[Site]:
    found: set[ast.AST] = set()
    for call in module.table.calls_by_name.of(METHODS):
        method = call.func
        if not isinstance(method, ast.Attribute):
            continue
        if not sharded(method.value, module, study):
            yield from _of_unknown(call, method.value, study, module)
            continue
        whole = is_gathered(call, study, module)
        for node, construct in uses_in_loop(call, study, module):
            if whole:
                if construct == DATA and node not in found and not is_discarded(node, module):
                    found.add(node)
                    yield Site(REPLACED, module, node, node, method.value)
                continue
            picked = any(looped_over(method.value, module, study))  # in picked_parameters.py
            if construct in BY_FLAT and (picked or not is_flat(method.value, module, study)):
                continue
            if node not in found:
                found.add(node)
                yield Site(construct, module, node, node, method.value)
        if not whole:
            yield from find_numbers(call, method.value, study, module)
    assigned = data_assignments(module.source.tree) if has_data_assignments(module) else ()
    for statement, parameter in assigned:
        is_path = isinstance(parameter, (ast.Attribute, ast.Subscript))
        model = whole_of(parameter, module, study) if is_path and statement not in found else None
        if model is not None:
            whole = is_gathered(statement, study, module)
            found.add(statement)
            if not whole or not is_discarded(statement, module):
                yield Site(REPLACED if whole else DATA, module, statement, statement, model)


def _of_unknown(call: ast.Call, model: ast.expr, study: Study, module: Module) -> Iterator[Site]:
    """Sites for what is asked of what may be a sharded model: what its parameters are, and numbers
    that are added up over the ranks."""
    guessed = models_given_back(model, module, study)
    if guessed and not is_gathered(call, study, module):
        asked = {SHAPE, COUNT, *(BY_FLAT if may_be_flat(guessed) else ())}
        for node, construct in uses_in_loop(call, study, module):
            if construct in asked:
                yield Site(construct, module, node, node, model)
    if loop_over(call, module) is None or not may_be_sharded(model, study, module):
        return
    numbers = [n for n in find_numbers(call, model, study, module) if n.construct == REDUCED]
    if numbers and not is_gathered(call, study, module):
        yield from numbers


def _of_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """``for group in optimizer.param_groups: for p in group["params"]: ...``"""
    if not module.mentions(GROUPS):
        return
    table = module.table
    known: dict[str, bool] = {}
    for text in table.strings:
        group = table.parents[text]
        if text.value != MEMBERS or not isinstance(group, ast.Subscript) or group.slice is not text:
            continue
        optimizer = optimizer_of_group(group, module)
        if optimizer is None or is_gathered(group, study, module):
            continue
        path = f"{id(enclosing_function(module, group))} {ast.unparse(optimizer)}"
        if path not in known:
            known[path] = bool(models_of_optimizer(optimizer, study, module))
        if not known[path]:
            continue
        for iterated in (group, *_named(group, module)):
            for node, construct in uses_in_loop(iterated, study, module):
                if construct == UPDATE and not _may_be_replicated(optimizer, study, module):
                    # FSDP1's forward did not see before a backward what was written to the
                    # sharded parameters after an evaluation, as FSDP2's does not.
                    continue
                if construct not in BY_FLAT:
                    yield Site(construct, module, node, node, optimizer)
            yield from find_numbers(iterated, optimizer, study, module)


def _may_be_replicated(optimizer: ast.expr, study: Study, module: Module) -> bool:
    """Whether an optimizer's model may be replicated.

    An optimizer's own methods are not asked about: they run after a backward.
    """
    if isinstance(optimizer, ast.Name) and optimizer.id == "self":
        return False
    chosen = [
        strategies.strategies_of(c, study) for c in models_of_optimizer(optimizer, study, module)
    ]
    return any(not found or "NO_SHARD" in found for found in chosen)


def _named(iterated: ast.expr, module: Module) -> Iterator[ast.Name]:
    """The uses of a name that a list is given: ``params = group["params"]``."""
    table = module.table
    given = table.parents[iterated]
    if not isinstance(given, ast.Assign) or given.value is not iterated:
        return
    target = given.targets[0]
    if isinstance(target, ast.Name):
        for name in table.names:
            same = name.id == target.id and table.within[name] is table.within[target]
            if same and isinstance(name.ctx, ast.Load):
                yield name


def _of_lists(study: Study, module: Module) -> Iterator[Site]:
    """Loops over lists and arguments that hold parameters of sharded models, or gradients."""
    assigns_data = has_data_assignments(module)
    counts = module.mentions(*COUNTS)
    for name in _iterated(study, module):
        loop = loop_over(name, module) or called_by_name(name, study, module)
        if loop is None:
            continue
        target, region, whole = loop
        names = names_in(target)
        assigned = [
            statement
            for part in (region if assigns_data else ())
            for statement, owner in data_assignments(part)
            if holder(owner) in names
        ]
        uses = list(uses_of_variables(whole, names, region))
        counted = counts and is_counted_over_ranks(names, region, whole, study, module)
        counted = counted or any(use[1] == COUNT for use in uses)
        read = [use for use in uses if use[1] in READ]
        if any(use[1] == NAME for use in uses) and _is_flat_by_name(name, study, module):
            yield Site(NAME, module, whole, whole, name)
            continue
        found = assigned or counted or read
        if not found and not reductions.find_reductions(names, region, study, module):
            continue
        if is_gathered(name, study, module) or not models_of_list(name, study, module):
            continue
        for statement in assigned:
            yield Site(DATA, module, statement, statement, name)
        if counted:
            yield Site(COUNT, module, whole, whole, name)
        for node, construct in read:
            yield Site(construct, module, node, node, name)
        yield from find_numbers(name, name, study, module)


def _is_flat_by_name(named: ast.expr, study: Study, module: Module) -> bool:
    """Whether a list or a dictionary holds parameters by their names, of which FSDP1 may have had
    flat ones alone."""
    held = parameters_in(named, study, module)
    if not any(isinstance(h, ast.Attribute) and h.attr == NAMED for h, _ in held):
        return False
    flat = may_be_flat(models_of_list(named, study, module))
    return flat and not is_gathered(named, study, module)


def _iterated(study: Study, module: Module) -> Iterator[ast.expr]:
    """What loops go over that may be a list of parameters, or a dictionary of them."""
    table = module.table
    yielding = study.cache(_generator_functions)
    items = (i for i in table.subscripts if not _is_of_optimizer(i, module))
    named: list[ast.Name | ast.Attribute | ast.Subscript]
    named = [*table.names, *table.attributes, *items]
    for name in named:
        around = table.parents[name]
        if isinstance(around, ast.Call) and not (gives_on(around) or applies(around)):
            continue  # as nearly always
        if isinstance(around, LOOPED) and isinstance(name.ctx, ast.Load):
            yield name
    for call in table.calls:
        called = last_name(call.func)
        mapped = called == MAP and isinstance(table.parents[call], LOOPED)
        flattened = called in FLATTENING and isinstance(table.parents[call], LOOPED)
        flattened = flattened and (called == "sum" or _is_itertools(call, study, module))
        handed = called in METHODS and isinstance(call.func, ast.Name)  # ``f(m.named_parameters)``
        plain = (called in ITEMS or handed) and not call.args and not call.keywords
        if plain or mapped or flattened or called in yielding:
            yield call
    others = AROUND | METHODS | ITEMS | FLATTENING | yielding | {MAP, "range"}
    for loop in table.loops:
        match loop.iter:
            case ast.Name() | ast.Attribute() | ast.Subscript():
                continue  # seen above
            case ast.Call(func=function) if last_name(function) in others:
                continue
        yield loop.iter


def _is_of_optimizer(item: ast.Subscript, module: Module) -> bool:
    """Whether an item is the parameters of an optimizer's group, which have sites already."""
    is_group = getattr(item.slice, "value", None) == MEMBERS
    return is_group and optimizer_of_group(item, module) is not None


def _is_itertools(call: ast.Call, study: Study, module: Module) -> bool:
    return any(n.startswith("itertools.") for n in study.external(call.func, module))


def _generator_functions(study: Study) -> set[str]:
    """The names of all functions of the project that yield."""
    yielding = (each for module in study.project.modules for each in module.table.yields)
    return {getattr(each, "name", "") for each in yielding}
