"""Which ``state_dict_type`` context a place in the code stands in, callers looked through."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Frame, Function, Made, Value
from fsdp_migrate.families.checkpoints.state_dict_settings import (
    Setting,
    is_context,
    kind_of,
    models_concerned,
    read_setting,
)
from fsdp_migrate.families.wrapping.stored_models import is_module
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import first_argument
from fsdp_migrate.syntax.kinds import method_of
from fsdp_migrate.syntax.trees import FUNCTIONS

MIXED = "it is called inside and outside a state_dict_type context"
CONTEXT_DEPTH = 3  # how many callers up a context is looked for


def is_in_context(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> bool:
    """Whether a ``state_dict_type`` context says what ``models`` give where ``node`` stands."""
    return setting_of_context(node, module, models, study, 0) is not None


def setting_of_context(
    node: ast.AST,
    module: Module,
    models: frozenset[Constructor],
    study: Study,
    depth: int,
    frame: Frame | None = None,
) -> Setting | None:
    """The innermost ``state_dict_type`` context around a node, callers looked through.

    Args:
        frame: the call of the function around it that is meant.
    """
    function: ast.AST | None = None
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            for item in reversed(parent.items):
                if node is item.context_expr:
                    continue
                found = setting_entered(item.context_expr, module, models, study, frame)
                if found is not None:
                    return found
        if isinstance(parent, FUNCTIONS):
            for decorator in getattr(parent, "decorator_list", ()):
                found = setting_entered(decorator, module, models, study)
                if found is not None:
                    return found
            function = parent
            break
    before = _entered_before(node, function, module, models, study)
    if before is not None:
        return before
    if function is None or depth >= CONTEXT_DEPTH:
        return None
    assert isinstance(function, FUNCTIONS)
    outside = [
        setting_of_context(site.call, site.module, models, study, depth + 1)
        for site in study.tracer.callers(function, module)
    ]
    distinct = set(outside)
    if len(distinct) > 1:
        return Setting(problem=MIXED)
    return distinct.pop() if distinct else None


def _entering(study: Study) -> set[ast.AST]:
    """The contexts that :func:`setting_entered` is at: one that leads to itself tells nothing."""
    return set()


def setting_entered(
    node: ast.expr,
    module: Module,
    models: frozenset[Constructor],
    study: Study,
    frame: Frame | None = None,
) -> Setting | None:
    """The setting that a ``with`` statement makes for ``models`` by what it enters.

    It may enter FSDP1's context, a context manager of the project's around that, a name for either,
    or the call of a function that returns one.
    """
    if isinstance(node, ast.Call) and is_context(node, module, study):
        concerns = models_concerned(first_argument(node), module, study) & models
        return read_setting_at(node, module, study, frame) if concerns else None
    entering = study.cache(_entering)
    if node in entering:
        return Setting(problem=MIXED)  # a function that hands out what it is handed
    entering.add(node)
    try:
        found = _found_in(node, module, models, study)
    finally:
        entering.discard(node)
    if len(found) > 1:
        return Setting(problem=MIXED)
    setting = found.pop() if found else None
    if setting is not None and setting.problem and isinstance(node, ast.Call):
        return replace(setting, entered=node)
    return setting


def read_setting_at(
    call: ast.Call, module: Module, study: Study, frame: Frame | None = None
) -> Setting:
    """As :func:`read_setting`, and whether its call goes with a branch that is for FSDP1 only.

    Args:
        frame: the call of the function that it stands in, by which it may be known.
    """
    setting = read_setting(call, module, study)
    if setting.problem and frame is not None:
        setting = read_setting(call, module, study, frame)
    if setting.problem and is_in_dropped_branch(call, module, study):
        return replace(setting, gone=True, kind=kind_of(call, module, study, frame) or setting.kind)
    return setting


def is_in_dropped_branch(call: ast.AST, module: Module, study: Study) -> bool:
    beside = {call, *module.table.ancestors(call)}
    return any(not beside.isdisjoint(branch.rest or branch.node.body) for branch in study.branches)


def _found_in(
    node: ast.expr, module: Module, models: frozenset[Constructor], study: Study
) -> set[Setting | None]:
    found: set[Setting | None] = set()
    functions: list[Function] = []
    if isinstance(node, ast.Call):
        functions = functions_with_contexts(node, module, study)
        if functions and len(functions) < len(study.values(node.func, module)):
            found.add(None)  # it may be something else that is called
    for function in functions:
        yields = [n for n in ast.walk(function.node) if isinstance(n, (ast.Yield, ast.YieldFrom))]
        yields = [each for each in yields if each not in study.project.outdated]
        assert isinstance(node, ast.Call)
        frame = study.tracer.frame(node, module, function.node)
        where = function.module
        for each in yields:
            found.add(setting_of_context(each, where, models, study, CONTEXT_DEPTH, frame))
        for handed in _handed_out(function, study) if not yields else ():
            found.add(setting_entered(handed, function.module, models, study, frame))
    if not functions and mentions_contexts(study):
        for value in study.values(node, module):
            if _has_own_context(value, study):
                found.add(Setting(problem=MIXED))
                continue
            entered = value.node if isinstance(value, Made) else None
            is_made = isinstance(entered, ast.Call) and entered is not node
            found.add(setting_entered(entered, value.module, models, study) if is_made else None)  # type: ignore[arg-type]
    return found


def mentions_contexts(study: Study) -> bool:
    return study.project.mentions("state_dict_type")


def _has_own_context(value: Value, study: Study) -> bool:
    """Whether a value is of a class whose ``__enter__`` may set a kind of state."""
    if not isinstance(value, Made) or not isinstance(value.callee, Class):
        return False
    return any(
        isinstance(node, ast.FunctionDef) and node.name == "__enter__"
        for cls in study.tracer.lineage(value.callee)
        if cls.module.mentions("state_dict_type")
        for node in cls.node.body
    )


def _entered_before(
    node: ast.AST,
    function: ast.AST | None,
    module: Module,
    models: frozenset[Constructor],
    study: Study,
) -> Setting | None:
    """The setting of what was entered by a call: ``stack.enter_context(...)``."""
    table = module.table
    found: set[Setting | None] = set()
    for call in (*table.methods.get("enter_context", ()), *table.methods.get("__enter__", ())):
        scope = table.scope_of(call).function()
        same = (scope.node if scope is not None else None) is function
        if not same or position(call) > position(node):
            continue
        entered = method_of(call).value
        block = _block_of_stack(entered, module)
        if block is not None and block not in table.ancestors(node):
            continue  # what was entered is left again
        what = call.args[0] if call.args else entered
        setting = setting_entered(what, module, models, study)
        if setting is not None:
            found.add(setting)
            if block is None and _may_be_left(entered, node, module):
                found.add(None)
            if not _certainly_before(call, node, module):
                found.add(None)
    if len(found) > 1:
        return Setting(problem=MIXED)
    return found.pop() if found else None


def _block_of_stack(stack: ast.expr, module: Module) -> ast.With | ast.AsyncWith | None:
    """The ``with ExitStack() as stack`` around a use of ``stack``: its end closes what is open."""
    path = access_path(stack)
    for parent in module.table.ancestors(stack):
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            names = [i.optional_vars or i.context_expr for i in parent.items]
            if path is not None and path in map(access_path, names):
                return parent
    return None


def _may_be_left(entered: ast.expr, node: ast.AST, module: Module) -> bool:
    """Whether what a call entered may have been left where ``node`` stands."""
    methods = module.table.methods
    leaving = [c for name in ("close", "__exit__", "pop_all") for c in methods.get(name, ())]
    path = access_path(entered)
    return any(
        access_path(call.func.value) == path and position(call) <= position(node)
        for call in leaving
        if isinstance(call.func, ast.Attribute)
    )


def _certainly_before(call: ast.Call, node: ast.AST, module: Module) -> bool:
    """Whether every condition around a call is also around ``node``, so that both run or none."""
    beside = set(module.table.ancestors(node))
    conditions = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.BoolOp)
    return not any(
        isinstance(parent, conditions) and parent not in beside
        for parent in module.table.ancestors(call)
    )


def functions_with_contexts(call: ast.Call, module: Module, study: Study) -> list[Function]:
    """The functions that a call may run, of those in files that mention FSDP1's context manager."""
    functions = [v for v in study.values(call.func, module) if isinstance(v, Function)]
    return [
        f
        for f in functions
        if f.module.mentions("state_dict_type") and isinstance(f.node, ast.FunctionDef)
    ]


def methods_of_modules(name: str, study: Study) -> list[Function]:
    """The methods of a name that the project's modules have: what a call on a model runs if nothing
    else is known about its class."""
    return [
        Function(method, module, owner=cls)
        for module in study.project.modules
        if module.mentions(name)
        for cls in module.table.scopes
        if isinstance(cls, ast.ClassDef) and is_module(Class(cls, module), study)
        for method in cls.body
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.name == name
    ]


def _handed_out(function: Function, study: Study) -> Iterator[ast.expr]:
    """What a function returns for FSDP1 models: in a branch for them, if it has one."""
    returns = [n for n in ast.walk(function.node) if isinstance(n, ast.Return)]
    own = [n for n in returns if is_in_dropped_branch(n, function.module, study)]
    for node in own or returns:
        if node.value is not None:
            yield node.value


def position(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, (ast.expr, ast.stmt))
    return node.lineno, node.col_offset
