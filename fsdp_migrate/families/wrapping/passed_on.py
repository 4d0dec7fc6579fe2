"""Arguments that a function hands on: ``def wrap(net, **kwargs): return FSDP(net, **kwargs)``.

Where all calls of the function are in sight, so is all that its constructor may be given.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import CallSite, class_of_method
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor, successor


def given_by_callers(
    constructor: Constructor, study: Study
) -> list[tuple[str, ast.expr, Module]] | None:
    """What a constructor is given beside what is written at its call, with the argument's name.

    None where that is not known.
    """
    function = enclosing_function(constructor.module, constructor.call)
    if not isinstance(function, ast.FunctionDef) or not _hands_on(constructor, function):
        return None
    callers = _callers(function, constructor.module, study)
    if callers is None:
        return None
    names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    for index, argument in enumerate(constructor.call.args):
        if isinstance(argument, ast.Starred):
            names += fsdp1.CONSTRUCTOR_ARGUMENTS[index:]
    found: list[tuple[str, ast.expr, Module]] = []
    for caller in callers:
        placed = dict(zip(names, caller.call.args, strict=False))
        named = {name: k.value for k in caller.call.keywords if (name := successor(k)) is not None}
        found += [(name, value, caller.module) for name, value in (placed | named).items()]
    return found


def _hands_on(constructor: Constructor, function: ast.FunctionDef) -> bool:
    """Whether a function gives a constructor its own further arguments as they are, and does
    nothing else with them."""
    table = constructor.module.table
    call, parameters = constructor.call, function.args
    own = {a.arg for a in (parameters.vararg, parameters.kwarg) if a is not None}
    opened = [a.value for a in call.args if isinstance(a, ast.Starred)]
    opened += [k.value for k in call.keywords if k.arg is None]
    names = [node.id for node in opened if isinstance(node, ast.Name)]
    scope = table.scopes[function]
    alone = all(len(scope.bindings[n]) == 1 and len(table.reads(n, scope)) == 1 for n in own)
    return bool(opened) and len(names) == len(opened) and {*names} == own and alone


def _callers(function: ast.FunctionDef, home: Module, study: Study) -> list[CallSite] | None:
    """The calls of a function, with all that they give it; None where others may call it."""
    if function.decorator_list or class_of_method(function, home) is not None:
        return None
    callers = study.tracer.callers(function, home)
    if not callers:
        return None  # it is there for somebody
    called = {caller.call.func for caller in callers}
    if any(use not in called for use in _uses(function, study)):
        return None
    if any(_is_renamed(function.name, module) for module in study.project.modules):
        return None
    for caller in callers:
        starred = any(isinstance(arg, ast.Starred) for arg in caller.call.args)
        opened = any(keyword.arg is None for keyword in caller.call.keywords)
        if starred or opened or caller.is_by_another or caller.partial is not None:
            return None
    return callers


def _uses(function: ast.FunctionDef, study: Study) -> Iterator[ast.expr]:
    """Where a function may be meant by its name."""
    for module in study.project.modules:
        if not module.mentions(function.name):
            continue
        named = module.table.names_by_id.named(function.name)
        for use in (*named, *module.table.attributes_by_name.named(function.name)):
            if any(value.node is function for value in study.values(use, module)):
                yield use


def _is_renamed(name: str, module: Module) -> bool:
    """Whether an import gives something of a name another one, by which it may be called."""
    aliases = (a for statement in module.table.import_statements for a in statement.names)
    return any(a.name == name and a.asname not in (None, name) for a in aliases)
