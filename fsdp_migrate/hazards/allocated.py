"""Memory that ``to_empty`` allocated and that nobody has filled."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, Made
from fsdp_migrate.families.training_loop.early_optimizers import TELLING, is_optimizer_name
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.hazards.order import end, function_scope, surely_precedes
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import position

EMPTIED = "to_empty"
REGISTERING = "register_buffer"
MADE = "__init__"
# What a model may be asked for or given to without that anything is put into it.
HARMLESS = frozenset({"eval", "train", "parameters", "named_parameters", "zero_grad", "to_empty"})
SHARDING = fully_sharded.FUNCTION
# Who says one of these goes through all buffers, or makes modules anew.
FILLING = frozenset({"buffers", "named_buffers", "_buffers", "reset_parameters", "deepcopy"})


def find_unfilled(study: Study, module: Module) -> Iterator[tuple[ast.Call, str]]:
    """Calls of ``to_empty`` of sharded models, and what is not filled behind them."""
    for call in module.table.calls_by_name.named(EMPTIED):
        if not isinstance(call.func, ast.Attribute):
            continue
        model = call.func.value
        is_run = isinstance(model, ast.Name) and _is_run_as_it_is(model, call, module)
        if not is_run and not study.cache(_may_have_unfilled):
            continue  # values cost more than words
        values = study.values(model, module)
        known = fully_sharded.sharded(study)
        if not values or any(value not in known for value in values):
            continue
        if is_run:
            yield call, ""
            continue
        buffers = [_unfilled_buffers(v, study) for v in values if isinstance(v, Made)]
        if len(buffers) == 1 and buffers[0]:
            yield call, ", ".join(buffers[0])


def _is_run_as_it_is(model: ast.Name, call: ast.Call, module: Module) -> bool:
    """Whether the same function runs the model with nothing in between that may fill it."""
    table = module.table
    scope = table.scope_of(call)
    if scope.lookup(model.id) is not scope or scope is not function_scope(call, module):
        return False
    uses = table.reads(model.id, scope)
    if any(table.scope_of(use) is not scope for use in uses):
        return False
    runs = [
        parent
        for use in uses
        if isinstance(parent := table.parents[use], ast.Call)
        and parent.func is use
        and position(parent) > end(call)
        and surely_precedes(call, parent, module)
    ]
    if not runs:
        return False
    between = [use for use in uses if end(call) < position(use) < position(runs[0])]
    return all(_is_harmless(use, module) for use in between)


def _is_harmless(use: ast.Name, module: Module) -> bool:
    parents = module.table.parents
    parent = parents[use]
    if isinstance(parent, ast.Attribute):
        asked = parents[parent]
        if not isinstance(asked, ast.Call) or parent.attr not in HARMLESS:
            return False
        if parent.attr not in {"parameters", "named_parameters"}:
            return True
        given = parents[asked]
        return isinstance(given, ast.Call) and is_optimizer_name(last_name(given.func))
    if isinstance(parent, ast.Call):
        return last_name(parent.func) in TELLING | {SHARDING}
    return False


def _may_have_unfilled(study: Study) -> bool:
    """Whether the project registers buffers that no checkpoint has, and nothing goes through all
    buffers or makes modules anew."""
    tables = [module.table for module in study.project.modules]
    registered = [call for t in tables for call in t.calls_by_name.named(REGISTERING)]
    return (
        any(k.arg == "persistent" for call in registered for k in call.keywords)
        and not any(t.attributes_by_name.of(FILLING) for t in tables)
        and not any(_is_made_again(c) for t in tables for c in t.calls_by_name.named(MADE))
    )


def _unfilled_buffers(model: Made, study: Study) -> list[str]:
    """The buffers of a model's class, and of those that it makes, that no checkpoint has and
    nothing but ``__init__`` makes."""
    if not isinstance(model.callee, Class):
        return []
    modules = study.project.modules
    found = {name for cls in _classes(model.callee, study) for name in _registered(cls, study)}
    return sorted(name for name in found if not any(_is_set(name, m) for m in modules))


def _is_made_again(call: ast.Call) -> bool:
    """``rope.__init__(...)``, which no class says of what it is derived from."""
    function = call.func
    if not isinstance(function, ast.Attribute) or isinstance(function.value, ast.Call):
        return False
    return not (call.args and isinstance(call.args[0], ast.Name) and call.args[0].id == "self")


def _classes(cls: Class, study: Study) -> list[Class]:
    """A class of the project, and those whose instances it makes, by and by."""
    found = [cls]
    for each in found:
        for call in each.module.table.calls_in(each.node):
            for value in study.values(call.func, each.module):
                if isinstance(value, Class) and all(value.node is not f.node for f in found):
                    found.append(value)
    return found


def _registered(cls: Class, study: Study) -> Iterator[str]:
    """The names of the buffers that ``__init__`` of a class registers with ``persistent=False``,
    and that a method reads."""
    for method in cls.node.body:
        if not isinstance(method, ast.FunctionDef) or method.name != MADE:
            continue
        for statement in method.body:
            match statement:
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(value=ast.Name(id="self"), attr="register_buffer"),
                        args=[ast.Constant(value=str(name)), value, *_],
                        keywords=[ast.keyword(arg="persistent", value=given)],
                    )
                ) if not isinstance(value, ast.Constant):
                    said = study.literal(given, cls.module)
                    read = cls.module.table.attributes_by_name.named(name)
                    if isinstance(said, Constant) and said.value is False and read:
                        yield name


def _is_set(name: str, module: Module) -> bool:
    """Whether a file may put something into an attribute, but where ``__init__`` registers it."""
    table = module.table
    for use in table.attributes_by_name.named(name):
        parent = table.parents[use]
        if not isinstance(use.ctx, ast.Load):
            return True
        if isinstance(parent, ast.Attribute) and (
            parent.attr.endswith("_") or parent.attr == "data"
        ):
            return True
        if isinstance(parent, ast.Call) and last_name(parent.func).endswith("_"):
            return True
        if isinstance(parent, ast.Subscript) and not isinstance(parent.ctx, ast.Load):
            return True
    texts = [each for each in table.strings if each.value == name]
    return any(_is_elsewhere(text, module) for text in texts)


def _is_elsewhere(text: ast.Constant, module: Module) -> bool:
    """Whether a name is no argument of ``register_buffer`` in an ``__init__``."""
    table = module.table
    call = table.parents[text]
    if not isinstance(call, ast.Call) or last_name(call.func) != REGISTERING:
        return True
    function = table.scope_of(call).function()
    return function is None or getattr(function.node, "name", "") != MADE
