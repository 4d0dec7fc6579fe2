"""Which models the parameters in a list or an optimizer belong to.

``optimizer.param_groups[0]["params"]`` holds what the optimizer's call was given, and a list what
``model.parameters()`` put into it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.analysis.values import Class, Computed, Made, Unknown
from fsdp_migrate.families.parameters import other_names
from fsdp_migrate.families.parameters.elements import lists_of, parameter_names
from fsdp_migrate.families.parameters.given_back import models_given_back
from fsdp_migrate.families.parameters.listed_parameters import ITEMS, parameters_in
from fsdp_migrate.families.parameters.looped_parts import kept_of, looped_over
from fsdp_migrate.families.parameters.own_parameters import models_of_self
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.parameters.state_tensors import Held, Step, elements_in, held_in
from fsdp_migrate.families.training_loop import early_optimizers
from fsdp_migrate.families.training_loop.call_order import runs_before_sharding
from fsdp_migrate.families.training_loop.later_wraps import wrapping_constructors
from fsdp_migrate.families.wrapping import enclosing_models
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.families.wrapping.own_names import wrapped_by_now
from fsdp_migrate.families.wrapping.sharded_parts import is_loaded_with, sharded_parts
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.fsdp1.unfollowed import is_foreign_result
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments, names_in
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

GROUPS = "param_groups"
OF_SHARDED = frozenset({"DTensor", "to_local", "_local_tensor", "full_tensor", "ShardedTensor"})


def knows_of_shards(node: ast.AST, module: Module) -> bool:
    """Whether the function around an expression takes sharded tensors for what they are."""
    table = module.table
    named: list[ast.expr] = [*table.names_by_id.of(OF_SHARDED)]
    named += table.attributes_by_name.of(OF_SHARDED)
    if not named:
        return False
    function = enclosing_function(module, node)
    return any(function in table.ancestors(each) for each in named)


def model_of(optimizer: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The model whose parameters an optimizer is given, where it has the same name here."""
    found: dict[str, ast.expr] = {}
    here = enclosing_function(module, optimizer)
    for value in study.values(optimizer, module):
        call = value.node
        if not isinstance(call, ast.Call) or value.module is not module:
            return None
        if early_optimizers.early_optimizer(call, module, study) is not None:
            return None
        own = enclosing_function(module, call) is here
        for argument in given_arguments(call):
            for held, where in parameters_in(argument, study, module):
                model = held.value if isinstance(held, ast.Attribute) else None
                path = access_path(model) if model is not None else None
                if model is None or path is None or not study.traced(model, where):
                    return None
                same = enclosing_models.class_of(model, module) == enclosing_models.class_of(
                    optimizer, module
                )
                if not own and not (path.startswith("self.") and same):
                    return None
                found.setdefault(path, model)
    return next(iter(found.values())) if len(found) == 1 else None


def optimizer_of_group(group: ast.Subscript, module: Module) -> ast.expr | None:
    """``optimizer`` of the ``group["params"]`` of one of its groups."""
    owner = group.value
    if isinstance(owner, ast.Subscript):  # optimizer.param_groups[0]["params"]
        listed = owner.value
        return owner_of_groups(listed)
    if not isinstance(owner, ast.Name):
        return None
    for parent in module.table.ancestors(group):
        generators: list[ast.For | ast.AsyncFor | ast.comprehension] = []
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            generators = [parent]
        elif isinstance(parent, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            generators = list(parent.generators)
        for each in generators:
            if owner.id in names_in(each.target):
                return next(filter(None, map(owner_of_groups, walk(each.iter))), None)
    return None


def owner_of_groups(node: ast.AST) -> ast.expr | None:
    return node.value if isinstance(node, ast.Attribute) and node.attr == GROUPS else None


def sharded(model: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """Who shards what a model's ``parameters()`` gives: its own constructors, those of the parts
    of a module that is not sharded itself, or those of ``self`` in a method of a sharded one, of
    what was wrapped by the name that it had, and of a part that a loop goes over; of a list, those
    of its models. What only tests shard counts where these are loaded."""
    return frozenset(c for c in _sharded(model, module, study) if is_loaded_with(c, module, study))


def _sharded(model: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    if study.traced(model, module):
        return study.models(model, module).constructors or study.every_constructor
    parts = sharded_parts(model, module, study).constructors
    own = (
        parts
        or models_of_self(model, module, study)
        or early_optimizers.models_of_each(model, module, study)
        or _by_its_earlier_name(model, module, study)
    )
    wholes = () if own else (*looped_over(model, module, study), *kept_of(model, module, study))
    for whole in wholes:
        own |= sharded(whole, module, study)
    return own or _of_wholes(model, module, study)


def _by_its_earlier_name(model: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """Who shards ``net`` of ``model = FSDP(net)``, for ``net`` or a part ``net.body``."""
    found = wrapped_by_now(model, module, study)
    if found or not isinstance(model, ast.Attribute):
        return found
    return _by_its_earlier_name(model.value, module, study)


def _of_wholes(part: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """Who shards the model that a part with a name of its own was taken out of."""
    for whole in other_names.wholes(part, module, study):
        if study.traced(whole, module):
            return study.models(whole, module).constructors or study.every_constructor
    return frozenset()


def models_concerned(site: Site, study: Study) -> frozenset[Constructor]:
    """The models whose parameters a site handles: directly, through an optimizer, in a list, or
    one by one."""
    return met_at(site.subject, _models_of(site, study), site.module, study)


def is_apart(site: Site, study: Study) -> bool:
    """Whether settings keep the parameters of all models that a site may handle from it."""
    found = _models_of(site, study)
    return bool(found) and not met_at(site.subject, found, site.module, study)


def is_early(site: Site, study: Study) -> bool:
    """Whether a site has run when the models that it may handle are sharded: their parameters are
    whole there. ``self.cast()`` above ``self.wrap()``, in a method that calls both."""
    return runs_before_sharding(site.subject, site.module, _models_of(site, study), study)


def _models_of(site: Site, study: Study) -> frozenset[Constructor]:
    own = sharded(site.subject, site.module, study)
    if own:
        return own
    found = models_of_optimizer(site.subject, study, site.module)
    found = found or models_of_list(site.subject, study, site.module)
    lists = () if found else lists_of(site.subject, study, site.module)
    found = found.union(*(models_of_list(each, study, where) for each, where in lists))
    found = found or models_of_states(site.subject, study, site.module)
    return found or models_given_back(site.subject, site.module, study)


def met_at(
    node: ast.expr, models: Iterable[Constructor], module: Module, study: Study
) -> frozenset[Constructor]:
    """The models among some that settings do not keep from a place: ``if args.fsdp`` made them, and
    the place is not in its ``else``."""
    return frozenset(
        c for c in models if not study.narrowing.is_never_met(c.node, c.module, node, module)
    )


def models_of_optimizer(
    optimizer: ast.expr, study: Study, module: Module
) -> frozenset[Constructor]:
    """The models whose parameters an optimizer holds; any, where that cannot be followed."""
    found: set[Constructor] = set()
    for value in study.values(optimizer, module):
        if isinstance(value, (Computed, Unknown)) or is_foreign_result(value):
            found.update(study.reached_from(module))
        if not isinstance(value, Made) or value.callee is None:
            continue
        if not early_optimizers.is_optimizer(value.callee, study):
            continue
        made = [(value.node, value.module)]
        if isinstance(value.callee, Class) and not isinstance(value.node, ast.Call):
            made = list(_constructions(value.callee, study))
            if not made and _is_handed_on(value.callee, study):
                found.update(study.reached_from(module))
        for call, where in made:
            if isinstance(call, ast.Call):
                found |= _given_to(call, study, where)
    return frozenset(found)


def _constructions(cls: Class, study: Study) -> Iterator[tuple[ast.AST, Module]]:
    """The calls that make objects of a class, or of one derived from it."""
    classes = [cls, *study.tracer.subclasses(cls)]
    nodes = {c.node for c in classes}
    names = {c.node.name for c in classes}
    for module in study.project.modules:
        calls = module.table.calls_by_name
        named = [n for n in calls.names if n in names or early_optimizers.is_optimizer_name(n)]
        for call in calls.of(named):
            for callee in study.values(call.func, module):
                if isinstance(callee, Class) and callee.node in nodes:
                    yield call, module


def _is_handed_on(cls: Class, study: Study) -> bool:
    """Whether a class that no call names is named elsewhere: something may call it by that."""
    name = cls.node.name
    return any(
        (module is not cls.module and module.mentions(name))
        or any(isinstance(n.ctx, ast.Load) for n in module.table.names_by_id.named(name))
        for module in study.project.modules
    )


def _given_to(call: ast.Call, study: Study, module: Module) -> frozenset[Constructor]:
    """The models whose parameters the call of an optimizer is given, by another one maybe."""
    known = study.cache(_given)
    if call not in known:
        known[call] = frozenset()  # of one that wraps itself in a loop there are no others
        found = _find_given(call, study, module)
        known[call] = frozenset(n for n, c in study.constructors.items() if c in found)
    return frozenset(study.constructors[n] for n in known[call] if n in study.constructors)


def _given(study: Study) -> dict[ast.Call, frozenset[ast.AST]]:
    """What constructors stand for: each form makes its own of them."""
    return {}


def _find_given(call: ast.Call, study: Study, module: Module) -> frozenset[Constructor]:
    early = early_optimizers.early_optimizer(call, module, study)
    if early is not None:
        made = (wrapping_constructors(wrap, module, study) for wrap in early.wraps)
        return frozenset[Constructor]().union(*made)
    given = given_arguments(call)
    found: set[Constructor] = set()
    plain = False
    for argument in given:
        for held, where in parameters_in(argument, study, module):
            if isinstance(held, ast.Subscript):
                continue  # the groups of another optimizer
            found |= sharded(held.value, where, study)
            plain = True
        if not plain and _is_optimizer(argument, study, module):
            found |= models_of_optimizer(argument, study, module)
            plain = True
    if plain or not given:
        return frozenset(found)
    return study.every_constructor


def _is_optimizer(node: ast.expr, study: Study, module: Module) -> bool:
    callees = [v.callee for v in study.values(node, module) if isinstance(v, Made)]
    return any(c is not None and early_optimizers.is_optimizer(c, study) for c in callees)


def models_of_list(node: ast.expr, study: Study, module: Module) -> frozenset[Constructor]:
    """The models whose parameters or gradients a list holds; any function may have made it."""
    match node:
        case ast.Call(
            func=ast.Attribute(value=ast.Attribute(value=owner, attr="state"), attr=attr)
        ):
            if attr in ITEMS:  # of an optimizer
                return models_of_optimizer(owner, study, module)
    found: set[Constructor] = set(_models_of_one(node, study, module))
    for held, where in parameters_in(node, study, module):
        if isinstance(held, ast.Subscript):
            optimizer = optimizer_of_group(held, where)
            found |= (
                models_of_optimizer(optimizer, study, where) if optimizer is not None else set()
            )
            continue
        for one in _one_by_one(held.value, where, study):
            for model in with_holders(one):
                own = sharded(model, where, study)
                if own and not is_gathered(held.value, study, where):
                    found |= own
                    break
    return frozenset(c for c in found if is_loaded_with(c, module, study))


def _models_of_one(node: ast.expr, study: Study, module: Module) -> frozenset[Constructor]:
    """The models of one parameter, ``model.head.weight``; of ``self`` it is whole in its own
    code."""
    if not isinstance(node, ast.Attribute) or node.attr not in study.cache(parameter_names):
        return frozenset()
    *_, root = with_holders(node.value)
    if is_self(root, module) or is_gathered(node, study, module):
        return frozenset()
    found = (sharded(model, module, study) for model in with_holders(node.value))
    return next(filter(None, found), frozenset())


def models_of_states(node: ast.expr, study: Study, module: Module) -> frozenset[Constructor]:
    """The models of the optimizers whose states an expression is of, or has tensors of."""
    held = held_in(node, study, module) or elements_in(node, study, module)
    return frozenset[Constructor]().union(
        *(
            models_of_optimizer(h.optimizer, study, h.module)
            for h in held
            if h.step is not Step.DICTIONARY and _may_be_optimizer(h, study)
        )
    )


def _may_be_optimizer(held: Held, study: Study) -> bool:
    """Whether what has a state is an optimizer, as far as it is known or named: no trainer."""
    found = study.values(held.optimizer, held.module)
    given = (d.value for d in study.defined_by(held.optimizer, held.module))
    named = [ast.unparse(each).lower() for each in (held.optimizer, *given) if each is not None]
    told = bool(found) and all(isinstance(v, Made) for v in found)
    return told or any("opt" in each for each in named)


def _one_by_one(node: ast.expr, module: Module, study: Study) -> Iterator[ast.expr]:
    """An expression, and what it stands for where a loop goes over some that are written out:
    ``model.encoder`` and ``head`` of ``for part in (model.encoder, head)``."""
    yield node
    for definition in study.defined_by(node, module) if isinstance(node, ast.Name) else ():
        if definition.kind is Kind.ELEMENT and definition.value is not None:
            for value in study.values(definition.value, module):
                if isinstance(value.node, (ast.List, ast.Tuple)) and value.module is module:
                    yield from value.node.elts


def with_holders(model: ast.expr) -> Iterator[ast.expr]:
    """``model.encoder``, and ``model``: its parts' parameters are sharded as its own are."""
    yield model
    while isinstance(model, (ast.Attribute, ast.Subscript)):
        model = model.value
        yield model


def is_flat(model: ast.expr, module: Module, study: Study) -> bool:
    """Whether FSDP1 may have shown one flat parameter a unit, without ``use_orig_params=True``."""
    return may_be_flat(sharded(model, module, study))


def may_be_flat(models: Iterable[Constructor]) -> bool:
    """As :func:`is_flat`, of some models."""
    for constructor in models:
        given = constructor.arguments.get("use_orig_params")
        if given is None and not constructor.is_open:
            return True
        is_true = isinstance(given, ast.Constant) and given.value is True
        if given is not None and (not is_true or constructor.may_lack("use_orig_params")):
            return True
    return False


def may_be_sharded(model: ast.expr, study: Study, module: Module) -> bool:
    """Whether a model of which nothing but tests tells may be one of the project's sharded ones,
    in code that knows no sharded parameters yet."""
    island = study.project.island(module)
    if not any(study.project.island(c.module) == island for c in study.every_constructor):
        return False
    if study.tracer.told(model, module) is False:
        return False
    found = study.values(model, module)
    if not all(isinstance(v, Unknown) or v.module.is_test for v in found):
        return False
    return not knows_of_shards(model, module)


def models_looped_over(iterated: ast.expr, study: Study, module: Module) -> dict[str, ast.expr]:
    """The models whose parameters a loop goes over, by their paths: ``self.model``."""
    found: dict[str, ast.expr] = {}
    for node in walk(iterated):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in METHODS:
            path = access_path(method.value)
            if path is not None and sharded(method.value, module, study):
                found.setdefault(path, method.value)
    return found
