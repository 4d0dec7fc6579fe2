"""Code that makes parts of a model anew when it is sharded already.

A module that is put into a sharded model has plain parameters, whose gradients no one reduces. In
FSDP1 an attribute of the wrapper was set, and the model inside kept its own module. Initial values
drawn for sharded parameters are others than FSDP1 drew, and on the CPU the same on every rank.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, External, Made
from fsdp_migrate.families.modules.visited_modules import model_in
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1 import unwrapping
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study

REPLACED = Construct.parse("module of a sharded model replaced")
DRAWN = Construct.parse("sharded parameter initialized")
INIT = "torch.nn.init."
WITH_PARAMETERS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?\w*(Linear|Conv|Norm|Embedding|RNN|LSTM|GRU|Attention|Transformer"
    r"|PReLU|Sequential|ModuleList|ModuleDict)\w*$"
)
CONSTANT = frozenset({"zeros_", "ones_", "constant_"})


def find_replaced_modules(study: Study, module: Module) -> Iterator[Site]:
    """Sites for modules that are replaced, and parameters that are drawn, after sharding."""
    for target, value in _stores(module):
        if not isinstance(value, ast.Call):
            continue
        model = model_in(target.value, study, module)
        if model is not None and _is_new_module(value, study, module):
            yield Site(REPLACED, module, target, target, model)
    calls = module.table.calls_by_name
    drawing = [name for name in calls.names if name.endswith("_") and name not in CONSTANT]
    for call in calls.of(drawing):
        method = call.func
        if not call.args:
            continue
        if not any(n.startswith(INIT) for n in study.external(method, module)):
            continue
        model = _model_of(call.args[0], study, module)
        if model is not None and not is_gathered(call, study, module):
            yield Site(DRAWN, module, call, call, model)


def is_on_wrapper(site: Site) -> bool:
    """Whether what is assigned is an attribute of FSDP1's wrapper, not of the model inside."""
    target = site.reference
    is_attribute = isinstance(target, ast.Attribute) and target.value is site.subject
    return is_attribute and getattr(site.subject, "attr", "") not in unwrapping.INNER


def _stores(module: Module) -> Iterator[tuple[ast.Attribute | ast.Subscript, ast.expr]]:
    """What is assigned to one attribute or element."""
    for attribute in module.table.attributes:
        target: ast.AST = attribute
        if attribute.ctx.__class__ is not ast.Store:
            target = module.table.parents[attribute]  # model.layers[0] = ...
            if not isinstance(target, ast.Subscript) or target.value is not attribute:
                continue
        statement = module.table.parents.get(target)
        if isinstance(statement, ast.Assign) and target in statement.targets:
            assert isinstance(target, (ast.Attribute, ast.Subscript))
            yield target, statement.value


def _is_new_module(call: ast.Call, study: Study, module: Module) -> bool:
    for value in study.values(call, module):
        callee = value.callee if isinstance(value, Made) else None
        if isinstance(callee, External):
            if WITH_PARAMETERS.match(callee.name):
                return True
        elif isinstance(callee, Class):
            bases = study.tracer.external_bases(callee)
            if any(b.startswith("torch.nn.") and b.endswith("Module") for b in bases):
                return True
    return False


def _model_of(node: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The FSDP model that a parameter is of: by its path, or by the loop over parameters."""
    if not isinstance(node, ast.Name):
        inner = node.value if isinstance(node, (ast.Attribute, ast.Subscript)) else None
        return model_in(inner, study, module) if inner is not None else None
    for definition in definitions(node, module):
        for part in ast.walk(definition.value) if definition.value is not None else ():
            method = part.func if isinstance(part, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in METHODS:
                return model_in(method.value, study, module)
    return None
