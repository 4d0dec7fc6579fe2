"""States that an optimizer gives and takes by its own methods: ``optimizer.state_dict()``.

They hold this rank's part, as FSDP1's did. Where each rank writes its own that is what is meant;
where one rank writes for all, every rank resumes with the first one's part, and nothing complains.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Computed, Constant, Function, Made, Unknown
from fsdp_migrate.families.checkpoints import (
    held_optimizers,
    hoisting_places,
    optimizer_states,
    ranks,
    snapshots,
    torchs_loads,
)
from fsdp_migrate.families.parameters import other_branches, parameter_owners
from fsdp_migrate.families.training_loop import schedulers
from fsdp_migrate.families.training_loop.early_optimizers import is_optimizer_name
from fsdp_migrate.fsdp1 import model_values, possible_models, unfollowed
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.kinds import present
from fsdp_migrate.syntax.trees import walk

SAVE = Construct.parse("optimizer's own state")
LOAD = Construct.parse("optimizer's own load")
GIVEN, TAKEN = "state_dict", "load_state_dict"
DEEPEST = 4  # names and functions that hand a state on


class Use(NamedTuple):
    """One call of an optimizer's own ``state_dict`` or ``load_state_dict``.

    ``model`` is how its sharded model is written in the same function, if it is.
    """

    call: ast.Call
    optimizer: ast.expr
    model: ast.expr | None
    models: frozenset[Constructor]


def find_own_states(study: Study, module: Module) -> Iterator[Site]:
    """A site for what one rank saves of an optimizer for all, and for what is loaded of a file."""
    if not study.constructors:
        return
    for use in _uses(GIVEN, study, module):
        if _is_of_one_rank(use.call, module, study):
            yield Site(SAVE, module, use.call, use.call.func, use.optimizer)
    for use in _uses(TAKEN, study, module):
        if are_gathered(module, study) or torchs_loads.comes_from_file(
            use.call.args[0], module, study
        ):
            yield Site(LOAD, module, use.call, use.call.func, use.optimizer)


def read(site: Site, study: Study) -> Use:
    """What stands at a site."""
    return _use(site.call, site.subject, site.module, study)


def are_gathered(module: Module, study: Study) -> bool:
    """Whether what a file saves and loads of optimizers can be whole states.

    One rank saves all of it, and what loads it is in sight, in the same file or else somewhere in
    the project; and the model is named beside each of them. Where the code for one of them did not
    pass its check, the others stay as they are with it: what one writes the other has to read.
    """
    if any(construct in (SAVE, LOAD) for _, _, construct in study.broken):
        return False
    known = study.cache(_found)
    own = known[module]
    if not own.is_complete:
        others = [each for each in known.values() if not each.is_complete]
        saves, loads = (sum(each[n] for each in others) for n in (0, 1))
        own = Found(saves, loads, all(each.are_whole for each in others))
    return own.is_complete and own.are_whole


class Found(NamedTuple):
    """How many saves and loads of optimizers' own states there are, and whether all can be
    whole."""

    saves: int
    loads: int
    are_whole: bool

    @property
    def is_complete(self) -> bool:
        return bool(self.saves and self.loads)


def _found(study: Study) -> dict[Module, Found]:
    found = {}
    for module in study.project.modules:
        saves = list(_uses(GIVEN, study, module, all_of_them=True))
        loads = list(_uses(TAKEN, study, module, all_of_them=True))
        whole = all(_can_be_whole(use, module, study) for use in (*saves, *loads)) and all(
            _is_of_one_rank(use.call, module, study)
            and not standing(Site(SAVE, module, use.call, use.call.func), use, study).review
            for use in saves
        )
        whole = whole and all(ranks.guard(use.call, module) is None for use in loads)
        found[module] = Found(len(saves), len(loads), whole)
    return found


def standing(site: Site, use: Use, study: Study) -> hoisting_places.Standing:
    """Where every rank would gather the state."""
    return hoisting_places.standing(site, (present(use.model), use.optimizer), study)


def _can_be_whole(use: Use, module: Module, study: Study) -> bool:
    """Whether torch's functions can be asked there: for a model, and for an ``Optimizer``."""
    held = held_optimizers.held_optimizer(use.optimizer, module, study)
    return use.model is not None and not held.problem


def _uses(name: str, study: Study, module: Module, *, all_of_them: bool = False) -> Iterator[Use]:
    """The calls of optimizers that hold sharded parameters, as far as known.

    Args:
        all_of_them: also where neither the optimizer nor a model beside it tells.
    """
    for attribute in module.table.attributes_by_name.of((name,)):
        call = module.table.parents[attribute]
        if not isinstance(call, ast.Call) or call.func is not attribute:
            continue
        if len(call.args) != (name == TAKEN) or call.keywords:
            continue
        if not _is_optimizer(attribute.value, module, study) or is_converted(call, module, study):
            continue
        if other_branches.is_of_no_model(attribute.value, module, study):
            continue
        use = _use(call, attribute.value, module, study)
        if optimizer_states.kinds(study.values(use.optimizer, module), study).is_empty:
            continue
        known = all_of_them or use.model is not None
        if use.models and (
            known
            or _is_known(use, module, study)
            or (name == TAKEN and _is_beside_unfollowed(use, module, study))
        ):
            yield use


def _use(call: ast.Call, optimizer: ast.expr, module: Module, study: Study) -> Use:
    held = parameter_owners.models_of_optimizer(optimizer, study, module)
    models = parameter_owners.met_at(optimizer, held, module, study)
    model = parameter_owners.model_of(optimizer, study, module) if models else None
    return Use(call, optimizer, model or _beside(optimizer, models, module, study), models)


def _beside(
    optimizer: ast.expr, models: frozenset[Constructor], module: Module, study: Study
) -> ast.expr | None:
    """The model whose state the same function takes or loads, if it is one."""
    function = enclosing_function(module, optimizer)
    found: dict[str, ast.expr] = {}
    for attribute in module.table.attributes_by_name.of((GIVEN, TAKEN)):
        node, path = attribute.value, access_path(attribute.value)
        if path is None or enclosing_function(module, node) is not function:
            continue
        if study.traced(node, module) and study.models(node, module).constructors & models:
            found.setdefault(path.removesuffix(".module"), node)
    plain = {path: node for path, node in found.items() if access_path(node) == path}
    return next(iter(plain.values())) if len(found) == len(plain) == 1 else None


def _is_optimizer(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether something is an optimizer, by what makes it or by a name of it."""
    values = study.values(node, module)
    if any(isinstance(v, Made) and v.made_by.startswith(schedulers.TORCHS) for v in values):
        return False
    known = any(held_optimizers.is_given_optimizer(v, study) for v in values)
    return known or is_optimizer_name(last_name(node))


def _is_known(use: Use, module: Module, study: Study) -> bool:
    """Whether it is known which parameters the optimizer holds, and nothing beside it says that
    they may be another model's: a function that saves a model which is not sharded."""
    values = [v for v in study.values(use.optimizer, module) if not isinstance(v, Constant)]
    if not values or any(isinstance(v, (Computed, Unknown)) for v in values):
        return False
    function = enclosing_function(module, use.optimizer)
    return all(
        enclosing_function(module, attribute) is not function
        or unfollowed.OTHER_OBJECTS.search(ast.unparse(attribute.value))
        or _is_optimizer(attribute.value, module, study)
        or study.traced(attribute.value, module)
        or _is_no_module(attribute.value, module, study)
        for attribute in module.table.attributes_by_name.of((GIVEN, TAKEN))
    )


def _is_no_module(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether something is surely no module: an object that averages parameters, say."""
    values = [v for v in study.values(node, module) if not isinstance(v, Constant)]
    classes = [v.callee for v in values if isinstance(v, Made) and isinstance(v.callee, Class)]
    plain = [cls for cls in classes if model_values.is_plain_class(cls, study.tracer)]
    return bool(plain) and len(plain) == len(values)


def _is_beside_unfollowed(use: Use, module: Module, study: Study) -> bool:
    """Whether the file shards models, and a function loads what may be one, or what one went into
    in a way that is not followed, beside an optimizer that nothing is known about."""
    if not any(c.module is module for c in study.constructors.values()):
        return False
    function = enclosing_function(module, use.optimizer)
    return any(
        enclosing_function(module, attribute) is function
        and not unfollowed.OTHER_OBJECTS.search(ast.unparse(attribute.value))
        and (
            unfollowed.made_of_model(attribute.value, module, study.tracer)
            or possible_models.may_be(attribute.value, module, study.tracer)
        )
        for attribute in module.table.attributes_by_name.named(TAKEN)
    )


def is_converted(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether FSDP1's functions take the state, or made it, here or under the name that is given.
    ``state = FSDP.optim_state_dict_to_load(...)`` answers for ``optimizer.load_state_dict(state)``.
    """
    near: list[ast.AST | None] = [call, *module.table.ancestors(call), *walk(call)]
    for given in call.args:
        near += (d.value for d in study.defined_by(given, module) if isinstance(given, ast.Name))
    return any(
        isinstance(each, ast.Call) and "optim_state_dict" in last_name(each.func) for each in near
    )


def _is_of_one_rank(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether one rank alone has the state, or alone does anything with it."""
    if ranks.is_for_one(call, module):
        return True
    if hoisting_places.standing(Site(SAVE, module, call, call.func), (), study).review:
        return True
    return _goes_to_one(call, module, study, DEEPEST)


def _goes_to_one(node: ast.AST, module: Module, study: Study, depth: int) -> bool:
    """Whether one rank alone uses a value, or the dictionary it stands in: here, or in the function
    of the project's that is given it, ``save_on_master(state, path)``."""
    table = module.table
    parent = table.parents[node]
    while isinstance(parent, (ast.Dict, ast.List, ast.Tuple)):
        node, parent = parent, table.parents[parent]
    if isinstance(parent, ast.keyword):
        node, parent = parent, table.parents[parent]
    uses: list[tuple[ast.Name, Module]] = []
    match parent:
        case ast.Assign(targets=[target]):
            owner = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(owner, ast.Name):
                uses = [(n, module) for n in table.reads(owner.id, table.scope_of(parent))]
                uses = [(n, w) for n, w in uses if n is not owner]
        case ast.Call(func=function) if node is not function:
            for value in study.values(function, module):
                if isinstance(value, Function):
                    uses += _uses_of_parameter(value, node, parent)
    uses = [(n, w) for n, w in uses if not snapshots.is_subscripted_target(n, w)]
    return bool(depth and uses) and all(
        ranks.is_for_one(n, w) or _goes_to_one(n, w, study, depth - 1) for n, w in uses
    )


def _uses_of_parameter(
    function: Function, given: ast.AST, call: ast.Call
) -> list[tuple[ast.Name, Module]]:
    """Where a function reads what a call gives it."""
    taken = function.node.args
    named = [a.arg for a in (*taken.posonlyargs, *taken.args)]
    name = ""
    if isinstance(given, ast.keyword):
        kwarg = taken.kwarg.arg if taken.kwarg else ""
        known = {*named, *(a.arg for a in taken.kwonlyargs)}
        name = given.arg if given.arg in known else kwarg
    elif given in call.args:
        place = call.args.index(given) + (named[:1] in (["self"], ["cls"]))
        vararg = taken.vararg.arg if taken.vararg else ""
        name = named[place] if place < len(named) else vararg
    table = function.module.table
    scope = table.scopes.get(function.node)
    reads = table.reads(name, scope) if name and scope is not None else []
    return [(read, function.module) for read in reads]
