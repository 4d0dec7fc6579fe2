"""Checkpoints that are loaded into copies, which nothing gives back."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.hazards.alone import CHECKPOINT, STATE_DICT, is_whole
from fsdp_migrate.hazards.files import LOADS, STATE
from fsdp_migrate.hazards.order import function_scope
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, Insert, code
from fsdp_migrate.syntax.expressions import first_argument, last_name
from fsdp_migrate.syntax.scopes import Kind

MODEL, OPTIMIZER = "get_model_state_dict", "get_optimizer_state_dict"
SETTERS = {MODEL: "set_model_state_dict", OPTIMIZER: "set_optimizer_state_dict"}


class Lost(NamedTuple):
    """A load of which something stays in a dictionary."""

    call: ast.Call
    getter: ast.Call
    is_whole: bool  # nothing of it is loaded; otherwise what is no tensor is lost
    edits: tuple[Edit, ...]


def find_lost(study: Study, module: Module) -> Iterator[Lost]:
    """Calls of ``torch.distributed.checkpoint.load`` into what getters gave, of which nothing is
    set below: a whole state of a sharded model, or the state of an optimizer."""
    for call in module.table.calls_by_name.of(LOADS):
        names = study.external(call.func, module)
        given = first_argument(call, STATE)
        if given is None or not names or not all(name.startswith(CHECKPOINT) for name in names):
            continue
        for getter, way in _getters(given, call, module):
            known = {f"{STATE_DICT}{name}" for name in SETTERS}
            if not study.external(getter.func, module) <= known or not getter.args:
                continue
            whole = is_whole(getter, module)
            if whole and not _is_sharded(getter.args[0], study, module):
                continue
            if whole or last_name(getter.func) == OPTIMIZER:
                yield Lost(call, getter, whole, _set(call, getter, way, study, module))


def _is_sharded(model: ast.expr, study: Study, module: Module) -> bool:
    values = study.values(model, module)
    known = fully_sharded.sharded(study)
    return bool(values) and all(value in known for value in values)


def _getters(
    given: ast.expr, call: ast.Call, module: Module
) -> Iterator[tuple[ast.Call, tuple[ast.Name, str] | ast.Name | None]]:
    """The calls that made the entries of a dictionary which nothing reads below a load, and how an
    entry is written there: a name, or a name and its key."""
    match _value(given, call, module):
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                made = _value(value, call, module)
                if isinstance(made, ast.Call) and last_name(made.func) in SETTERS:
                    named = isinstance(given, ast.Name) and isinstance(key, ast.Constant)
                    if isinstance(value, ast.Name):
                        yield made, value
                    elif named and isinstance(given, ast.Name) and isinstance(key, ast.Constant):
                        yield made, (given, _quoted(key.value))
                    else:
                        yield made, None
        case ast.Call() as made if last_name(made.func) in SETTERS:
            yield made, given if isinstance(given, ast.Name) else None


def _quoted(key: object) -> str:
    return f'"{key}"' if isinstance(key, str) and key.isidentifier() else repr(key)


def _value(node: ast.expr, call: ast.Call, module: Module) -> ast.expr | None:
    """What an expression is, or a variable of the function that nothing reads below the load, or
    hands on above it; None where it may be more."""
    if not isinstance(node, ast.Name):
        return node
    scope = module.table.scope_of(node)
    bindings = scope.bindings.get(node.id, [])
    if scope is not function_scope(call, module) or len(bindings) != 1:
        return None
    made = bindings[0]
    reads = module.table.reads(node.id, scope)
    inside = [each for each in reads if each is node]
    if made.kind is not Kind.ASSIGN or made.unpack or len(reads) != len(inside):
        return None
    return made.value


def _set(
    call: ast.Call,
    getter: ast.Call,
    way: tuple[ast.Name, str] | ast.Name | None,
    study: Study,
    module: Module,
) -> tuple[Edit, ...]:
    """The call that gives an entry back, where the entry has a name and all ranks have it."""
    statement = module.table.statement(call)
    if way is None or not isinstance(statement, ast.Expr) or statement.value is not call:
        return ()
    if not all(isinstance(each, ast.Name) for each in getter.args):
        return ()
    options = [k for k in getter.keywords if k.arg == "options"]
    if len(options) != len(getter.keywords) or "cpu_offload" in ast.unparse(getter):
        return ()
    name = last_name(getter.func)
    if options and not isinstance(options[0].value, ast.Call):
        return ()
    namer = study.proposal()
    setter = namer.name(module, STATE_DICT.rstrip("."), SETTERS[name], call)
    entry = way.id if isinstance(way, ast.Name) else f"{way[0].id}[{way[1]}]"
    given = [*(ast.unparse(each) for each in getter.args), entry]
    given += [f"options={ast.unparse(k.value)}" for k in options]
    new = code("{text}", text=f"{setter}({', '.join(given)})")
    return (*namer.edits, Insert(module, statement, (new,), after=True))
