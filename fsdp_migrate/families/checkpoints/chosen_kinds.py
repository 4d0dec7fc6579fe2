"""Kinds of state among which a context manager of the project's own chooses by a parameter.

``def states(model, kind): if kind == "full": ... elif kind == "sharded": ...``: where it is entered
with a kind that only the running program knows, the calls in the block can ask what the function
asks: ``full_state_dict=self.kind == "full"``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing.functions import (
    argument_of,
    class_of_method,
    default_of,
    is_static,
)
from fsdp_migrate.families.checkpoints.own_managers import Entered
from fsdp_migrate.families.checkpoints.state_dict_contexts import read_setting_at
from fsdp_migrate.families.checkpoints.state_dict_settings import Setting
from fsdp_migrate.planning.context import Study


@dataclass(frozen=True)
class Chosen:
    """What a call gives for the kind, and what each name of one means."""

    given: ast.expr
    kinds: tuple[tuple[str, Setting], ...]

    def where(self, holds: Callable[[Setting], bool]) -> str:
        """The code that tells the kinds of which something holds."""
        names = [f'"{name}"' for name, setting in self.kinds if holds(setting)]
        others = [f'"{name}"' for name, setting in self.kinds if not holds(setting)]
        path = ast.unparse(self.given)
        if not names or not others:
            return str(bool(names))
        if len(names) > 1:
            return (
                f"{path} != {others[0]}" if len(others) == 1 else f"{path} in ({', '.join(names)})"
            )
        return f"{path} == {names[0]}"


def chosen(
    entered: Entered, function: ast.FunctionDef, context: ast.Call, module: Module, study: Study
) -> Chosen | None:
    """The kinds that a function around a ``state_dict_type`` context knows, by what a call of it
    gives; None where the function does not tell them by the names of kinds alone."""
    asked = _asked(function, module)
    if len(asked) != 1:
        return None
    ((arg, names),) = asked.items()
    bound = class_of_method(function, module) is not None and not is_static(function)
    given = argument_of(entered.call, function, arg.arg, bound=bound)
    given = given or default_of(arg, function)
    if given is None or access_path(given) is None:
        return None
    calls = study.cache(_calls)
    kinds = []
    for name in names:
        if (arg, name) not in calls:
            value = ast.copy_location(ast.Constant(name), context)
            named = [ast.keyword(arg.arg, value)]
            made = ast.Call(ast.Name(function.name, ast.Load()), [], named)
            calls[arg, name] = ast.copy_location(made, context)
        frame = study.tracer.frame(calls[arg, name], module, function)
        setting = read_setting_at(context, module, study, frame)
        if setting.problem:
            return None
        kinds.append((name, setting))
    return Chosen(given, tuple(kinds))


def _calls(study: Study) -> dict[tuple[ast.arg, str], ast.Call]:
    """Calls with the name of each kind, which stand in no file."""
    return {}


def _asked(function: ast.FunctionDef, module: Module) -> dict[ast.arg, list[str]]:
    """The parameters that a function compares with texts, and these."""
    found: dict[ast.arg, list[str]] = {}
    scope = module.table.scopes[function]
    for node in ast.walk(function):
        match node:
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.Eq()],
                comparators=[ast.Constant(value=str(text))],
            ):
                pass
            case _:
                continue
        bindings = scope.bindings.get(name, [])
        if len(bindings) == 1 and isinstance(bindings[0].node, ast.arg):
            texts = found.setdefault(bindings[0].node, [])
            texts += [text] if text not in texts and '"' not in text else []
    return found
