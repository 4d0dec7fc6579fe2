"""Which kind of state dict FSDP1 would give at a place in the code.

FSDP1 chooses by state hidden in the model: a ``state_dict_type`` context around the call, an
earlier ``set_state_dict_type``, or the default, which is FULL on every rank. FSDP2 chooses at the
call.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from enum import Enum, auto

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.checkpoints import kept_kinds
from fsdp_migrate.families.checkpoints.state_dict_contexts import (
    MIXED,
    is_in_dropped_branch,
    mentions_contexts,
    position,
    read_setting_at,
    setting_entered,
    setting_of_context,
)
from fsdp_migrate.families.checkpoints.state_dict_settings import (
    DEFAULT,
    DIFFERENT,
    Setting,
    is_static_call,
    models_concerned,
)
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.expressions import first_argument
from fsdp_migrate.syntax.trees import FUNCTIONS, block_of

OTHERS = (
    "another model of the project is set to a kind of state by set_state_dict_type: if it can get "
    "here, give the StateDictOptions that are meant for it"
)


def setting_at(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> Setting:
    """The setting in force where ``node`` stands, for any of ``models``."""
    found = setting_of_context(node, module, models, study, 0)
    if found is not None:
        return found
    nearest = None if study.run_time_states else _last_set(node, module, models, study)
    if nearest is not None:
        return nearest
    fixed = _set_globally(node, module, models, study)
    if fixed:
        if len(set(fixed)) > 1:
            sharded = any(setting.kind == "SHARDED" for setting in fixed)
            gone = sharded and _go_with_branches(models, study)
            return Setting("SHARDED" if gone else "FULL", problem=DIFFERENT, gone=gone)
        return fixed[0]
    return DEFAULT


def _go_with_branches(models: frozenset[Constructor], study: Study) -> bool:
    """Whether models are set to a kind of state in branches for FSDP1 alone."""
    return all(
        is_in_dropped_branch(call, where, study)
        for call, where in setters(study).items()
        if models_concerned(first_argument(call), where, study) & models
    )


def _last_set(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> Setting | None:
    """The setting that a statement above ``node`` always makes, and that nothing in between may
    change; None if there is no such statement in the function."""
    statement = node
    for parent in module.table.ancestors(node):
        for earlier in _statements_above(statement, parent):
            setter = earlier.value if isinstance(earlier, ast.Expr) else None
            if not isinstance(setter, ast.Call) or setter not in setters(study):
                if _may_set(earlier, module, study):
                    return None
            elif models_concerned(first_argument(setter), module, study) & models:
                return read_setting_at(setter, module, study)
        if isinstance(parent, FUNCTIONS) or _may_set(parent, module, study):
            return None
        statement = parent
    return None


def _statements_above(node: ast.AST, parent: ast.AST) -> list[ast.stmt]:
    """Those of the same block, the nearest first."""
    if not isinstance(node, ast.stmt):
        return []
    block = block_of(parent, node)
    return block[: block.index(node)][::-1]


def _may_set(node: ast.AST, module: Module, study: Study) -> bool:
    """Whether something in ``node`` sets a model to a kind of state, or may call what does."""
    names = study.cache(_setting_functions)
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
    return any(c in setters(study) or _is_named(c, names, module, study) for c in calls)


def _setting_functions(study: Study) -> frozenset[str]:
    """The names of functions that call ``set_state_dict_type``, however indirectly."""
    found: set[str] = set()
    new = {_name_of_function(call, module) for call, module in setters(study).items()}
    while new - found:
        found |= new
        new = {
            _name_of_function(call, module)
            for module in study.project.modules
            if any(map(module.mentions, found))
            for call in module.table.calls
            if _is_named(call, found, module, study)
        }
    return frozenset(found)


def _is_named(call: ast.Call, names: Collection[str], module: Module, study: Study) -> bool:
    """Whether a function of the project with one of these names may be called."""
    name = (access_path(call.func) or "").rpartition(".")[2]
    return name in names and not study.external(call.func, module)


def _name_of_function(node: ast.AST, module: Module) -> str:
    return getattr(enclosing_function(module, node), "name", "")


def _set_globally(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> list[Setting]:
    """The settings of ``set_state_dict_type`` that may be in force where ``node`` stands."""
    found = []
    for call, where in setters(study).items():
        if not models_concerned(first_argument(call), where, study) & models:
            continue
        apart, unsure = kept_kinds.is_of_others(call, where, node, module, study)
        if apart:
            found.append(replace(DEFAULT, doubt=OTHERS) if unsure else DEFAULT)
            continue
        order = _order(call, where, node, module, models, study)
        if order is not Order.LATER:
            found.append(read_setting_at(call, where, study))
        if order is Order.UNKNOWN:
            found.append(DEFAULT)
    for entered, where in _kept_open(study):
        if setting_entered(entered, where, models, study) is not None:
            found += [DEFAULT, Setting(problem=MIXED)]
    return found


def _kept_open(study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """Contexts that stay open when the function ends: ``self.stack.enter_context(...)``."""
    for module in study.project.modules:
        for name in ("enter_context", "__enter__") if mentions_contexts(study) else ():
            for call in module.table.methods.get(name, ()):
                stack = call.func.value if isinstance(call.func, ast.Attribute) else None
                if isinstance(stack, ast.Attribute):
                    yield (call.args[0] if call.args else stack), module


class Order(Enum):
    """Whether a model is set to a kind of state before or after its state is asked for."""

    EARLIER = auto()
    LATER = auto()
    UNKNOWN = auto()  # or perhaps never


def _order(
    call: ast.Call,
    where: Module,
    node: ast.AST,
    module: Module,
    models: frozenset[Constructor],
    study: Study,
) -> Order:
    """When a setting is made; one in another function is taken to come first, if it always runs."""
    going = {branch.node for branch in study.branches}  # which ran for FSDP1's models
    if may_not_run(call, where, models, going) is not None:
        return Order.UNKNOWN
    function = enclosing_function(where, call)
    same = where is module and enclosing_function(module, node) is function
    if not same or node is call or position(node) > position(call):
        return Order.EARLIER
    loops = [p for p in where.table.ancestors(call) if isinstance(p, (ast.For, ast.While))]
    fresh = any(c.module is where and enclosing_function(where, c.call) is function for c in models)
    if fresh and not any(node is n for loop in loops for n in ast.walk(loop)):
        return Order.LATER
    return Order.UNKNOWN


def is_surely_set(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> bool:
    """Whether a model certainly has been set to some kind of state when ``node`` runs.

    What another function sets does not count: it may run later, or not at all.
    """
    context = setting_of_context(node, module, models, study, 0)
    if context is not None:
        return context.problem != MIXED
    function = enclosing_function(module, node)
    return any(
        where is module
        and enclosing_function(where, call) is function
        and models_concerned(first_argument(call), where, study) & models
        and _order(call, where, node, module, models, study) is Order.EARLIER
        for call, where in setters(study).items()
    )


def setters(study: Study) -> dict[ast.Call, Module]:
    """Every call of FSDP1's ``set_state_dict_type``."""
    return study.cache(_setters)


def _setters(study: Study) -> dict[ast.Call, Module]:
    return {
        call: module
        for module in study.project.modules
        if module.mentions("set_state_dict_type")
        for call in module.table.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "set_state_dict_type"
        and is_static_call(call, "set_state_dict_type", module, study)
    }


def may_not_run(
    call: ast.Call,
    module: Module,
    models: Iterable[Constructor],
    going: Collection[ast.AST] = (),
) -> ast.If | None:
    """The outermost condition on which a model is set to a state, unless it is also that on which
    the model is sharded, or asks whether it is."""
    table = module.table
    sharding = [(c, p) for c in models for p in c.module.table.ancestors(c.call)]
    tests = {ast.unparse(p.test) for _, p in sharding if isinstance(p, ast.If)}
    found = None
    for parent in table.ancestors(call):
        if isinstance(parent, FUNCTIONS):
            break
        if not isinstance(parent, ast.If) or any(p is parent for _, p in sharding):
            continue
        if parent in going:
            continue
        asks = any(isinstance(n, ast.Name) and n.id == "isinstance" for n in ast.walk(parent.test))
        if not asks and ast.unparse(parent.test) not in tests:
            found = parent
    return found if found is not None and not _sets([found]) else None


def _sets(block: Sequence[ast.stmt]) -> bool:
    """Whether a block sets a model to a kind of state in every case."""
    for statement in block:
        match statement:
            case ast.If(body=body, orelse=orelse) if _sets(body) and _sets(orelse):
                return True
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="set_state_dict_type"))):
                return True
    return False
