"""Methods of a model's own class that handle its parameters: ``self.parameters()`` in a method
that is called on the model when it is sharded already.
"""

from __future__ import annotations

import ast

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import class_of_method
from fsdp_migrate.analysis.values import Class
from fsdp_migrate.families.wrapping.own_names import wrapped_by_now
from fsdp_migrate.families.wrapping.stored_models import is_module, may_shard
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.unwrapping import INNER
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import FUNCTIONS

Method = ast.FunctionDef | ast.AsyncFunctionDef


def models_of_self(node: ast.expr, module: Module, study: Study) -> frozenset[Constructor]:
    """The models that ``self`` may be in a method of a class of modules, of ``self`` or a part of
    it; none where the method is not known to be called on sharded ones."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    method = enclosing_function(module, node)
    if not isinstance(node, ast.Name) or not isinstance(method, Method):
        return frozenset()
    owner = class_of_method(method, module)
    parameters = [*method.args.posonlyargs, *method.args.args]
    if owner is None or not parameters or parameters[0].arg != node.id:
        return frozenset()
    known = study.cache(_known)
    if method not in known:
        known[method] = frozenset()  # a method that calls itself adds nothing
        found = _called_on(method, Class(owner, module), study)
        known[method] = frozenset(n for n, c in study.constructors.items() if c in found)
    return frozenset(study.constructors[n] for n in known[method] if n in study.constructors)


def _known(study: Study) -> dict[ast.AST, frozenset[ast.AST]]:
    """What constructors stand for: each form makes its own of them."""
    return {}


def _called_on(method: Method, cls: Class, study: Study) -> frozenset[Constructor]:
    """The sharded models that a method is called on."""
    found: set[Constructor] = set()
    if not study.constructors or not is_module(cls, study):
        return frozenset()
    for module in study.project.modules:
        if not module.mentions(method.name):
            continue
        for call in module.table.calls_by_name.named(method.name):
            if not isinstance(call.func, ast.Attribute):
                continue
            receiver = _wrapper_of(call.func.value, module, study)
            if study.traced(receiver, module):
                models = study.models(receiver, module).constructors
                found.update(c for c in models if may_shard(c, cls, study))
            elif wrapped := wrapped_by_now(receiver, module, study):
                found.update(c for c in wrapped if may_shard(c, cls, study))
            elif isinstance(receiver, ast.Name) and _is_own(receiver, module, cls, study):
                found |= models_of_self(receiver, module, study)
    return frozenset(found)


def _wrapper_of(node: ast.expr, module: Module, study: Study) -> ast.expr:
    """``model`` of ``model.module``, and of a name that is given that; else ``node``."""
    given = [d.value for d in study.defined_by(node, module)]
    for each in (node, *given):
        if isinstance(each, ast.Attribute) and each.attr in INNER:
            return each.value
    return node


def _is_own(receiver: ast.Name, module: Module, cls: Class, study: Study) -> bool:
    """Whether a name is ``self`` in a method of a class, of one derived from it or of a base."""
    method = enclosing_function(module, receiver)
    owner = class_of_method(method, module) if isinstance(method, FUNCTIONS) else None
    if owner is None:
        return False
    lineages = study.tracer.lineage(cls), study.tracer.lineage(Class(owner, module))
    return any(each.node in (cls.node, owner) for lineage in lineages for each in lineage[1:]) or (
        owner is cls.node
    )
