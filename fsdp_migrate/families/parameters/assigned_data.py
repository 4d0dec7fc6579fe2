"""``.data`` of a parameter that is not reached by a loop over parameters: ``params[0].data = x``.

Nothing comes of such an assignment to a sharded parameter, and nothing complains.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.elements import lists_of
from fsdp_migrate.families.parameters.looped_parts import looped_over
from fsdp_migrate.families.parameters.parameter_loops import DATA
from fsdp_migrate.families.parameters.parameter_owners import models_of_list
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import COMPREHENSIONS, walk

ASSIGNED = Construct.parse("data assigned to a picked parameter")
GIVING = frozenset({"parameters", "named_parameters", "get_parameter"})
HANDING_ON = GIVING | {"list", "tuple", "dict", "OrderedDict", "next", "iter", "sorted"}
DEEPEST = 4  # names that lead to one another


def find_assigned_data(study: Study, module: Module) -> Iterator[Site]:
    """A site for every assignment to ``.data`` of a parameter that is picked out of a model."""
    if not study.constructors:
        return
    for node, parameter in _targets(module):
        model = _model(parameter, module, study, DEEPEST)
        if model is None and _is_given(parameter, study, module):
            statement = module.table.statement(node)
            yield Site(DATA, module, statement, statement, parameter)
        if model is not None and not is_gathered(node, study, module):
            yield Site(ASSIGNED, module, node, node, model)


def _is_given(node: ast.expr, study: Study, module: Module) -> bool:
    """Whether the callers of a function give it a sharded parameter by this name, or it is picked
    out of a list or a dictionary of some, or of copies of some: ``self.shadow[name]``."""
    if isinstance(node, ast.Subscript):
        return bool(models_of_list(node.value, study, module)) and not is_gathered(
            node, study, module
        )
    found = study.defined_by(node, module) if isinstance(node, ast.Name) else ()
    if not found or any(definition.kind is not Kind.PARAMETER for definition in found):
        return False
    lists = lists_of(node, study, module)
    return any(models_of_list(each, study, where) for each, where in lists)


def _targets(module: Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned to, and whose ``.data`` it is."""
    for attribute in module.table.attributes_by_name.of(("data",)):
        if isinstance(attribute.ctx, ast.Store):
            yield attribute, attribute.value
    for call in module.table.calls_by_name.of(("setattr",)):
        match call.args:
            case [parameter, ast.Constant(value="data"), _]:
                yield call, parameter


def _model(node: ast.expr, module: Module, study: Study, depth: int) -> ast.expr | None:
    """The sharded model that a parameter is picked out of."""
    match node:
        case ast.Subscript(value=inner):
            return _model(inner, module, study, depth)
        case ast.Attribute(value=ast.Name() as owner):  # of a loop over modules
            wholes = looped_over(owner, module, study)
            return next((w for w in wholes if study.traced(w, module)), None)
        case ast.Call(func=function) if last_name(function) in HANDING_ON:
            return _asked(node, module, study)
        case ast.Name() if depth:
            return _named(node, module, study, depth)
    return None


def _asked(call: ast.Call, module: Module, study: Study) -> ast.expr | None:
    for inner in walk(call):
        method = inner.func if isinstance(inner, ast.Call) else None
        if isinstance(method, ast.Attribute) and method.attr in GIVING:
            wholes = [method.value, *looped_over(method.value, module, study)]
            found = next((w for w in wholes if study.traced(w, module)), None)
            if found is not None:
                return found
    return None


def _named(name: ast.Name, module: Module, study: Study, depth: int) -> ast.expr | None:
    """What a name is given; the variable of a ``for`` statement is another's to answer for."""
    of_comprehension = any(isinstance(n, COMPREHENSIONS) for n in module.table.ancestors(name))
    for definition in study.defined_by(name, module):
        if definition.value is None or (definition.kind is Kind.ELEMENT and not of_comprehension):
            continue
        found = _model(definition.value, module, study, depth - 1)
        if found is not None:
            return found
    return None
