"""Which models' parameters an optimizer gets, however they come to it.

``AdamW(model.parameters())``; a list or groups that loops over ``named_parameters()`` fill; what a
function gives of a model.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.parameters.listed_parameters import Held, parameters_in
from fsdp_migrate.families.parameters.parameter_loops import METHODS
from fsdp_migrate.families.training_loop.early_optimizers import (
    given_parameters,
    is_optimizer,
    is_optimizer_name,
    models_of_each,
    parameter_calls,
)
from fsdp_migrate.fsdp1.model_values import definitions
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import given_arguments, names_in
from fsdp_migrate.syntax.kinds import method_of
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, walk

ASKED = METHODS | {"children", "modules", "named_children", "named_modules"}


def optimizers(module: Module, study: Study) -> Iterator[ast.Call]:
    """The calls of a file that build an optimizer, in order."""
    calls = module.table.calls_by_name
    named = calls.of([name for name in calls.names if is_optimizer_name(name)])
    found = dict.fromkeys([*given_parameters(module), *named])
    for call in sorted(found, key=lambda each: (each.lineno, each.col_offset)):
        if any(is_optimizer(v, study) for v in study.values(call.func, module)):
            yield call


def asked_for(call: ast.Call, module: Module, study: Study) -> tuple[Held, ...]:
    """Every ``model.parameters`` whose elements a call is given, and its file."""
    direct = [(method_of(parameters), module) for parameters in parameter_calls(call)]
    arguments = () if direct else given_arguments(call)
    listed = [held for a in arguments for held in parameters_in(a, study, module)]
    found = [each for held in (*direct, *listed) for each in (held, *_gone_over(held, study))]
    return tuple(dict.fromkeys(found)) or tuple(_flowing_into(call, module))


def _gone_over(held: Held, study: Study) -> Iterator[Held]:
    """``net.modules`` of ``m.parameters`` in ``for m in net.modules()``."""
    asked, module = held
    owner = asked.value
    for definition in definitions(owner, module) if isinstance(owner, ast.Name) else ():
        if definition.kind is Kind.ELEMENT and definition.value is not None:
            yield from _asked(definition.value, module)


def _flowing_into(call: ast.Call, module: Module) -> Iterator[Held]:
    """Every ``model.named_parameters`` or ``model.modules`` out of which what a call is given may
    come in its function: by assignments, loops, and methods of what is filled."""
    function = enclosing_function(module, call)
    if not isinstance(function, FUNCTIONS):
        return
    above = [n for n in walk(function) if isinstance(n, ast.stmt) and n.lineno < call.lineno]
    moves = [move for statement in above for move in _moves(statement)]
    names = {name for argument in given_arguments(call) for name in names_in(argument)}
    sources: dict[ast.expr, None] = {}
    while new := [source for to, source in moves if to & names and source not in sources]:
        sources |= dict.fromkeys(new)
        names |= {name for source in new for name in names_in(source)}
    for source in sources:
        yield from _asked(source, module)


def _asked(source: ast.expr, module: Module) -> Iterator[Held]:
    for node in walk(source):
        match node:
            case ast.Call(func=ast.Attribute(attr=attr) as asked) if attr in ASKED:
                yield asked, module


def _moves(statement: ast.stmt) -> Iterator[tuple[set[str], ast.expr]]:
    """The names that a statement gives something, and what it gives them."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            yield {name for target in targets for name in names_in(target)}, value
        case ast.AugAssign(target=target, value=value):
            yield names_in(target), value
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield names_in(target), value
        case ast.For(target=target, iter=value):
            yield names_in(target), value
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner)) as filling):
            for value in given_arguments(filling):
                yield names_in(owner), value


def models(call: ast.Call, module: Module, study: Study) -> frozenset[Constructor]:
    """The sharded models whose parameters an optimizer gets."""
    held = asked_for(call, module, study)
    return frozenset(c for h, where in held for c in models_of_each(h.value, where, study))
