"""Optimizers that are built before their model is wrapped, by another function than wraps it.

A trainer's ``__init__`` builds the optimizer, and its ``shard`` wraps the model; a function is
given both, and wraps one. FSDP1 with ``use_orig_params=True`` kept the parameters. Those that
``fully_shard`` makes are others, so that such an optimizer trains nothing, without an error.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Made, Unknown, Value
from fsdp_migrate.families.parameters import early_parameters, optimized_models
from fsdp_migrate.families.parameters.attributes import keeps_attributes
from fsdp_migrate.families.training_loop.early_optimizers import (
    early_optimizer,
    parameter_calls,
    stored_paths,
    trained_models,
)
from fsdp_migrate.families.wrapping import part_paths
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.kinds import method_of
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

CONSTRUCT = Construct.parse("distant optimizer")
UNSEEN = Construct.parse("model of unseen callers")
Place = tuple[ast.expr, Module]
_Leading = dict[ast.AST, list[Place]]  # calls by the function that they stand in


@dataclass(frozen=True, eq=False)
class DistantOptimizer:
    """An optimizer of a model that another function wraps later, by these constructors."""

    constructors: frozenset[Constructor]
    is_made_anew: bool  # behind the wrap, under the same name


def find_distant_optimizers(study: Study, module: Module) -> Iterator[Site]:
    """Sites for optimizers that are built before another function wraps their model."""
    for call in optimized_models.optimizers(module, study) if keeping(study) else ():
        if read_distant_optimizer(call, module, study) is not None:
            yield Site(CONSTRUCT, module, call, call)


def read_distant_optimizer(call: ast.Call, module: Module, study: Study) -> DistantOptimizer | None:
    """What there is to know of an optimizer, if another function wraps its model later."""
    owners: list[Place] = []
    for held, where in optimized_models.asked_for(call, module, study):
        asking = where.table.parents.get(held)  # none of what map() asks
        if not isinstance(asking, ast.Call) or not _is_answered(asking, where, study):
            owners.append((held.value, where))
    wraps = set(wrapped_later(owners, (call, module), study))
    wrapped_yet = optimized_models.models(call, module, study)
    wraps.difference_update(given_anew(study))
    if not wraps or wrapped_yet - wraps or early_optimizer(call, module, study) is not None:
        return None
    return DistantOptimizer(frozenset(wraps), _is_made_anew(call, module, wraps, study))


def wrapped_later(owners: list[Place], built: Place, study: Study) -> frozenset[Constructor]:
    """The constructors that surely wrap one of some modules behind a place."""
    wraps: set[Constructor] = set()
    for owner, where in owners:
        own = part_paths.places(owner, where, study)
        for constructor in keeping(study):
            wrapped = part_paths.places(constructor.wrapped, constructor.module, study)
            shared = part_paths.shared(own, wrapped)
            if any(_wrapped_later(v, built, constructor, study) for v in shared):
                wraps.add(constructor)
    return frozenset(wraps)


def runs_before(constructor: Constructor, node: ast.expr, module: Module) -> bool:
    """Whether a constructor is called in the same function as something, and before it."""
    around = enclosing_function(constructor.module, constructor.call)
    is_here = around is enclosing_function(module, node)
    return is_here and _order(node, constructor.call, module) == {False}


def keeping(study: Study) -> list[Constructor]:
    """The constructors under which FSDP1 may have kept the parameters."""
    return [
        constructor
        for constructor in study.constructors.values()
        if constructor.has_module and keeps_attributes(constructor, study) is not None
    ]


def _wrapped_later(value: Value, built: Place, constructor: Constructor, study: Study) -> bool:
    """Whether the object that an optimizer is built for is surely given to a constructor later."""
    call, module = built
    wrap = (constructor.call, constructor.module)
    if not isinstance(value, (Made, Unknown)) or study.narrowing.is_never_met(*wrap, call, module):
        return False
    found: set[bool] = set()
    to_built, to_wrap = leading_to(*built, study), leading_to(*wrap, study)
    for function in to_built.keys() & to_wrap.keys():
        if not part_paths.is_one_object(value, function, to_built[function][0][1], study):
            continue
        for one, where in to_built[function]:
            if _is_answered(one, where, study) or _is_unread(one, where):
                return False
            for other, _ in to_wrap[function]:
                found |= _order(one, other, where)
    return found == {True} or (not found and _is_set_up(to_built, to_wrap))


def _is_answered(call: ast.expr, module: Module, study: Study) -> bool:
    """Whether a call collects parameters, and moves behind the wrap for that."""
    if not isinstance(call, ast.Call) or not early_parameters.may_collect(last_name(call.func)):
        return False
    return early_parameters.read_early_parameters(call, module, study) is not None


def _is_unread(call: ast.expr, module: Module) -> bool:
    """Whether what a call gives is bound to a name in a function that nothing reads."""
    match module.table.parents[call]:
        case ast.Assign(targets=[ast.Name(id=name) as target]):
            scope = module.table.scope_of(target).lookup(name)
            is_local = scope is not None and isinstance(scope.node, FUNCTIONS)
            return is_local and not module.table.reads(name, scope)
    return False


def leading_to(call: ast.expr, module: Module, study: Study) -> _Leading:
    """What runs so that a call runs: itself, and the calls that lead there, by function."""
    found: _Leading = {}
    waiting: list[Place] = [(call, module)]
    for each, where in waiting:
        function = enclosing_function(where, each)
        new = function not in found
        found.setdefault(function, []).append((each, where))
        if new and isinstance(function, FUNCTIONS):
            waiting += [(c.call, c.module) for c in study.tracer.callers(function, where)]
    return found


def _order(one: ast.AST, other: ast.AST, module: Module) -> set[bool]:
    """Whether one call of a function runs before another; empty where that is not told."""
    if one is other:
        return set()
    table = module.table
    if other in table.ancestors(one):
        return {True}  # one is an argument of the other
    above_one = [table.statement(one), *table.ancestors(table.statement(one))]
    above_other = [table.statement(other), *table.ancestors(table.statement(other))]
    for first in above_one:
        for second in above_other:
            if first is second or table.parents.get(first) is not table.parents.get(second):
                continue
            assert isinstance(first, ast.stmt)
            block = block_of(table.parents[first], first)
            places = [block.index(s) for s in (first, second) if s in block]
            return {places[0] < places[1]} if len(places) == 2 else set()  # other arms of an if
    return set()


def _is_set_up(built: _Leading, wrap: _Leading) -> bool:
    """Whether the ``__init__`` of a class leads to where an optimizer is built, and another method
    of it to the wrap."""
    classes = {
        where.table.parents.get(function)
        for function, [(_, where), *_] in wrap.items()
        if getattr(function, "name", "") != "__init__"
    }
    within = (
        where.table.parents.get(function)
        for function, [(_, where), *_] in built.items()
        if getattr(function, "name", "") == "__init__" and function not in wrap
    )
    return any(isinstance(each, ast.ClassDef) and each in classes for each in within)


def given_anew(study: Study) -> Iterator[Constructor]:
    """The models whose optimizer is initialized again with their parameters, the same object:
    ``optimizer.__init__(model.parameters(), **optimizer.defaults)``."""
    for model, module in study.cache(_models_of_anew):
        yield from study.models(model, module).constructors


def _models_of_anew(study: Study) -> list[tuple[ast.expr, Module]]:
    return [
        (method_of(parameters).value, module)
        for module in study.project.modules
        for call in module.table.calls_by_name.named("__init__")
        for parameters in parameter_calls(call)
    ]


def _is_made_anew(call: ast.Call, module: Module, wraps: set[Constructor], study: Study) -> bool:
    """Whether something of the same name is an optimizer of the model that is wrapped."""
    targets = getattr(module.table.statement(call), "targets", [])
    names = {path.rpartition(".")[2] for target in targets for path in stored_paths(target)}
    for other in study.project.modules:
        for built in optimized_models.optimizers(other, study):
            if built is call:
                continue
            again = getattr(other.table.statement(built), "targets", [])
            if names.isdisjoint(p.rpartition(".")[2] for t in again for p in stored_paths(t)):
                continue
            if not wraps.isdisjoint(optimized_models.models(built, other, study)):
                return True
    return False


def find_unseen_wraps(study: Study) -> Iterator[Site]:
    """Sites for models that are parameters of a method which no call in sight leads to. The
    project itself calls it, by a registry or a base class, as it does not call a function."""
    for constructor, around in unseen_wraps(study):
        if _class_of_method(around, constructor.module) and around.name != "__init__":
            given = constructor.wrapped
            yield Site(UNSEEN, constructor.module, given, given, constructor.call)


def unseen_wraps(study: Study) -> Iterator[tuple[Constructor, ast.FunctionDef]]:
    """The constructors of a model that is a parameter of a function which nobody in sight calls,
    and the function around each, where no optimizer in sight gets the model: one may be built
    before."""
    kept = keeping(study)
    trained = trained_models(study) if kept else frozenset()
    for constructor in kept:
        around = enclosing_function(constructor.module, constructor.call)
        if constructor in trained or not isinstance(around, ast.FunctionDef):
            continue
        if _is_trained_in(around, constructor, study):
            continue
        given = study.values(constructor.wrapped, constructor.module)
        if any(_comes_from_outside(v, constructor, study) for v in given):
            yield constructor, around


def _is_trained_in(around: ast.FunctionDef, constructor: Constructor, study: Study) -> bool:
    """Whether a function builds an optimizer for the model that it wraps, from lists of its
    parameters: ``AdamW([{"params": decay}, {"params": no_decay}])``."""
    module = constructor.module
    return any(
        constructor in optimized_models.models(call, module, study)
        for call in optimized_models.optimizers(module, study)
        if around in module.table.ancestors(call)
    )


def called_by(around: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> str:
    """The name by which a function is called: that of the class, of its ``__init__``."""
    cls = _class_of_method(around, module)
    return cls.name if cls is not None and around.name == "__init__" else around.name


def _class_of_method(
    around: ast.FunctionDef | ast.AsyncFunctionDef, module: Module
) -> ast.ClassDef | None:
    within = module.table.parents.get(around)
    return within if isinstance(within, ast.ClassDef) else None


def _comes_from_outside(value: Value, constructor: Constructor, study: Study) -> bool:
    """Whether a value is a parameter that no call in sight gives, or what a call that is not
    followed makes of one: ``model = super().wrap(model)``."""
    if not isinstance(value, Unknown):
        return False
    if not isinstance(value.node, ast.Call):
        return isinstance(value.node, ast.arg)
    path = access_path(constructor.wrapped)
    same = [a for a in given_arguments(value.node) if path is not None and access_path(a) == path]
    found = (v for a in same for v in study.values(a, value.module))
    return any(isinstance(v, Unknown) and isinstance(v.node, ast.arg) for v in found)
