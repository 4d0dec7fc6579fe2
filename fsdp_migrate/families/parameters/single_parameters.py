"""Numbers of one parameter: ``next(model.parameters()).norm()``, ``model.head.weight.sum()``."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import is_self
from fsdp_migrate.families.parameters import value_reads
from fsdp_migrate.families.parameters.elements import parameter_names, variable_of
from fsdp_migrate.families.parameters.parameter_loops import ASKED, METHODS, asked_at
from fsdp_migrate.families.parameters.parameter_numbers import NUMBER, OWN, VALUES
from fsdp_migrate.families.parameters.parameter_owners import (
    knows_of_shards,
    models_of_list,
    sharded,
)
from fsdp_migrate.families.parameters.value_reads import Found, Read
from fsdp_migrate.families.wrapping.gathered import is_gathered
from fsdp_migrate.fsdp1.construct import Construct
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import walk

CONSTRUCTS = {Read.NUMBER: NUMBER, Read.OWN: OWN, Read.VALUES: VALUES}
LISTED = frozenset({"list", "tuple", "dict"})
Asking = dict[ast.expr, list[tuple[ast.Attribute, Construct]]]


def find_single_reads(study: Study, module: Module) -> Iterator[Site]:
    """A site for every number that is computed of one parameter of a sharded model, and for what is
    asked of one, in each function once."""
    said: set[tuple[ast.AST, Construct]] = set()
    asking = _asking(module)
    for parameter, model in _parameters(study, module, asking):
        reads = reads_through_names(parameter, study, module)
        questions = _questions(parameter, asking, study, module) if asking else []
        if not (reads or questions) or is_gathered(parameter, study, module):
            continue
        owner = _owner(parameter, model, study, module)
        if owner is None or is_self(owner, module):  # whole where a model's own code runs
            continue
        for found in (each for each in reads if each.read in CONSTRUCTS):
            yield Site(CONSTRUCTS[found.read], module, found.node, found.node, owner)
        for node, construct in questions:
            here = enclosing_function(module, node), construct
            if here not in said and not knows_of_shards(node, module):
                said.add(here)
                yield Site(construct, module, node, node, owner)


def _parameters(
    study: Study, module: Module, asking: Asking
) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What takes one parameter out of what may be a model, and that."""
    parents = module.table.parents
    for call in module.table.calls_by_name.of(METHODS):
        taken: ast.expr = call
        while isinstance(around := parents[taken], ast.Call) and taken in around.args:
            taken = around
        function = last_name(taken.func) if isinstance(taken, ast.Call) else ""
        if isinstance(call.func, ast.Attribute):
            if function == "next":
                yield taken, call.func.value
            elif function in LISTED and isinstance(around, ast.Subscript):
                yield around, call.func.value
    for call in module.table.calls_by_name.named("get_parameter"):
        if isinstance(call.func, ast.Attribute):
            yield call, call.func.value
    for attribute in module.table.attributes_by_name.of(study.cache(parameter_names)):
        if isinstance(attribute.ctx, ast.Load):
            yield attribute, attribute.value
    for item in module.table.subscripts:  # weights["head.weight"] of dict(model.named_parameters())
        held = item.value
        is_read = isinstance(held, (ast.Name, ast.Attribute)) and isinstance(item.ctx, ast.Load)
        if is_read and (item in asking or any(value_reads.reads_of(item, study, module))):
            yield item, held


def _asking(module: Module) -> Asking:
    """What a file asks of tensors, by the expressions for these."""
    found: Asking = defaultdict(list)
    for attribute in module.table.attributes_by_name.of(ASKED):
        asked = asked_at(attribute, module)
        if asked is not None:
            found[variable_of(asked[0])].append((attribute, asked[1]))
    return found


def _questions(
    parameter: ast.expr, asking: Asking, study: Study, module: Module
) -> list[tuple[ast.Attribute, Construct]]:
    """What is asked of a parameter, or of the variable of this function that it is given to."""
    found = list(asking.get(parameter, ()))
    match module.table.parents[parameter]:
        case ast.Assign(targets=[ast.Name(id=variable)]):
            for name in _uses(variable, parameter, study, module):
                found += asking.get(name, ())
    return found


def reads_through_names(parameter: ast.expr, study: Study, module: Module) -> list[Found]:
    """What is read of a parameter, or of the variable of this function that it is given to."""
    found: list[Found] = []
    for each in value_reads.reads_of(parameter, study, module):
        if isinstance(each, Found):
            found.append(each)
            continue
        for name in _uses(each, parameter, study, module):
            reads = value_reads.reads_of(name, study, module)
            found += [read for read in reads if isinstance(read, Found)]
    return found


def _uses(variable: str, parameter: ast.expr, study: Study, module: Module) -> Iterator[ast.Name]:
    """Where a variable of this function is used that a parameter is given to."""
    here = enclosing_function(module, parameter)
    for name in module.table.names_by_id.named(variable):
        if enclosing_function(module, name) is here and isinstance(name.ctx, ast.Load):
            given = [d for d in study.defined_by(name, module) if d.kind is Kind.ASSIGN]
            if any(parameter in walk(d.value) for d in given if d.value is not None):
                yield name


def _owner(parameter: ast.expr, model: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """What may be sharded, and has the parameter: a list or dictionary of parameters, or the model
    that they are taken out of. An item of a model itself is a module, and no parameter."""
    if isinstance(parameter, ast.Subscript) and parameter.value is model:
        return model if models_of_list(model, study, module) else None
    return _sharded_part(model, study, module)


def _sharded_part(model: ast.expr, study: Study, module: Module) -> ast.expr | None:
    """The sharded model that a path begins with, or is."""
    while not sharded(model, module, study):
        if not isinstance(model, (ast.Attribute, ast.Subscript)):
            return None
        model = model.value
    return model
