"""Code that freezes or unfreezes parameters of a sharded model: ``p.requires_grad = False``.

FSDP1's parameters stay the same objects. FSDP2's are others while they are gathered, as they are
after an evaluation, and what is set on those is forgotten with the next backward
(torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``to_sharded``).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.checkpoints.training_order import may_follow_evaluation
from fsdp_migrate.families.training_loop import unused_yet
from fsdp_migrate.families.training_loop.gathered_roots import (
    may_stay_gathered,
    resharded_first,
)
from fsdp_migrate.families.wrapping.computing_methods import Methods
from fsdp_migrate.families.wrapping.wrapped_modules import models_made, unwrapped
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import is_plain_class
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Decision
from fsdp_migrate.syntax.expressions import names_in
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import walk

RULE = "FSDP408"
Function = ast.FunctionDef | ast.AsyncFunctionDef
FREEZE = Construct.parse("parameter freezing")
SETTERS = frozenset({"requires_grad", "requires_grad_"})


def find_freezing(study: Study, module: Module) -> Iterator[Site]:
    """A site for every statement that freezes parameters of a sharded model after a forward."""
    if not study.constructors or not study.project.mentions(*SETTERS):
        return
    methods = Methods(study)
    handled: set[tuple[ast.stmt, str]] = set()
    for node, model in _settings(study, module, methods):
        statement = _whole_loop(node, model, module)
        key = statement, ast.unparse(model)
        if key in handled or not may_follow_evaluation(statement, module, study):
            continue
        if unused_yet.has_not_run(model, statement, module, study):
            continue
        if may_stay_gathered(study.models(model, module).constructors, study):
            handled.add(key)
            yield Site(FREEZE, module, node, statement, model)


def is_frozen_in_between(study: Study) -> bool:
    """Whether some parameters may be trained at one time and frozen at another."""
    return study.cache(_any_site)


def _any_site(study: Study) -> bool:
    return any(site for module in study.project.modules for site in find_freezing(study, module))


def _settings(
    study: Study, module: Module, methods: Methods
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What sets ``requires_grad`` of parameters, and the model that they are of."""
    for node in module.table.attributes:
        model = _model_of(node.value, study, module) if is_set(node) else None
        if model is not None:
            yield node, model
    for call in module.table.calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        owner, name = unwrapped(call.func.value), call.func.attr
        for made in models_made(owner, module, study) if name in study.cache(_freezing) else ():
            classes = methods.classes(made)
            if not classes or any(methods.find(cls, name) for cls in classes):
                yield call, owner
                break


def _freezing(study: Study) -> frozenset[str]:
    """The names of methods that models may have which set ``requires_grad`` of something, or call
    a function that does."""
    direct: list[tuple[Function, Module]] = []
    for module in study.project.modules:
        for attribute in filter(is_set, module.table.attributes):
            direct += _functions_around(attribute, module)
    calling: list[tuple[Function, Module]] = []
    for call, module in study.tracer.calls_named(*{function.name for function, _ in direct}):
        calling += _functions_around(call, module)
    every = dict.fromkeys([*direct, *calling])
    return frozenset(f.name for f, module in every if _may_be_a_models(f, module, study))


def _functions_around(node: ast.AST, module: Module) -> list[tuple[Function, Module]]:
    around = module.table.ancestors(node)
    return [(f, module) for f in around if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _may_be_a_models(function: Function, module: Module, study: Study) -> bool:
    """Whether a function is a method of a class that may be a module, by what it derives from."""
    around = class_of_method(function, module)
    return around is not None and not is_plain_class(Class(around, module), study.tracer)


def is_set(node: ast.AST) -> bool:
    """Whether a node is ``p.requires_grad = ...`` or ``p.requires_grad_``."""
    if not isinstance(node, ast.Attribute) or node.attr not in SETTERS:
        return False
    return node.attr == "requires_grad_" or isinstance(node.ctx, ast.Store)


def _model_of(node: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The model of ``model.head.weight``, or of the loop that ``node`` is the variable of."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if study.traced(node, module):
            return node
        node = node.value
    if study.traced(node, module):
        return node
    for parent in module.table.ancestors(node) if isinstance(node, ast.Name) else ():
        match parent:
            case ast.For() | ast.AsyncFor() if ast.unparse(node) in names_in(parent.target):
                return _looped_over(parent.iter, study, module)
    return None


def _looped_over(iterated: ast.expr, study: Study, module: Module) -> ast.expr | None:
    for node in walk(iterated):
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(method, ast.Attribute) and "parameters" in method.attr:
            return _model_of(unwrapped(method.value), study, module)
    return None


def _whole_loop(node: ast.expr, model: ast.expr, module: Module) -> ast.stmt:
    """The outermost loop over the model's parameters around ``node``, or its statement."""
    statement = module.table.statement(node)
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.For, ast.AsyncFor)) and model in set(ast.walk(parent.iter)):
            return parent
    return statement


def decide_freezing(site: Site, study: Study) -> Decision:
    """Reshard the model before, so that what is set is set on what stays."""
    models = study.models(site.subject, site.module).constructors
    before = of_kind(site.reference, ast.stmt)
    return resharded_first(site, [site.subject], study, RULE, models=models, before=before)
