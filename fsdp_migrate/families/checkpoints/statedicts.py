"""Which kind of state dict FSDP1 would give at a place in the code.

FSDP1 chooses by state hidden in the model: a ``state_dict_type`` context around the call, an
earlier ``set_state_dict_type``, or the default, which is FULL on every rank. FSDP2 chooses at the
call.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Constant, External, Function, Made, Value
from fsdp_migrate.families.checkpoints import holders
from fsdp_migrate.families.wrapping import strategy
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.model import Constructor
from fsdp_migrate.syntax.trees import FUNCTIONS

MIXED = "it is called inside and outside a state_dict_type context"
CONTEXT_DEPTH = 3  # how many callers up a context is looked for


@dataclass(frozen=True)
class Setting:
    """A state dict type with its two configurations; defaults as in ``fsdp/api.py``."""

    kind: str = "FULL"
    offload: bool = False
    rank0_only: bool = False
    optim_offload: bool = True
    optim_rank0_only: bool = False
    problem: str = ""  # why it cannot be told
    local: bool = False  # of a kind that FSDP2 does not have: SHARDED takes its place
    gone: bool = False  # what makes it goes with a branch for FSDP1: no running program knows it

    def __str__(self) -> str:
        words = [self.kind]
        words += ["offload_to_cpu"] if self.offload else []
        words += ["rank0_only"] if self.rank0_only else []
        return " ".join(words)


DEFAULT = Setting()
LOCAL = (
    "each rank's state now holds its shard of every parameter: it is saved and loaded as before, "
    "but files in FSDP1's LOCAL form do not load"
)


def arguments(call: ast.Call, names: tuple[str, ...]) -> dict[str, ast.expr] | None:
    """Bind a call's arguments to ``names`` by position and keyword; None when it unpacks any."""
    if any(isinstance(a, ast.Starred) for a in call.args) or len(call.args) > len(names):
        return None
    bound = dict(zip(names, call.args, strict=False))
    for keyword in call.keywords:
        if keyword.arg is None or keyword.arg not in names:
            return None
        bound[keyword.arg] = keyword.value
    return bound


TYPE_ARGUMENTS = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")


def has_group(bound: dict[str, ast.expr]) -> bool:
    """Whether the arguments of a static name a process group: None means the model's own."""
    group = bound.get("group")
    return group is not None and not (isinstance(group, ast.Constant) and group.value is None)


def read(call: ast.Call, module: Module, study: Study) -> Setting:
    """The setting a ``state_dict_type`` or ``set_state_dict_type`` call makes."""
    bound = arguments(call, TYPE_ARGUMENTS)
    if bound is None or "state_dict_type" not in bound:
        return Setting(problem="its arguments cannot be read")
    kinds = set()
    for value in study.values(bound["state_dict_type"], module):
        name = fsdp1.canonical(value.name) if isinstance(value, External) else None
        kinds.add(name or "?")
    if len(kinds) != 1 or "?" in kinds:
        spelled = ast.unparse(bound["state_dict_type"])
        return Setting(problem=f"the state dict type {spelled} is only known at run time")
    kind = kinds.pop().removeprefix("StateDictType.").removesuffix("_STATE_DICT")
    if kind not in {"FULL", "LOCAL", "SHARDED"}:  # StateDictType[name], say
        spelled = ast.unparse(bound["state_dict_type"])
        return Setting(problem=f"the state dict type {spelled} is only known at run time")
    setting = Setting(kind=kind)
    if kind == "LOCAL":
        setting = Setting(kind="SHARDED", local=True)
    for name, optim in (("state_dict_config", False), ("optim_state_dict_config", True)):
        if name in bound:
            setting = _configured(setting, bound[name], module, study, optim=optim)
    return setting


def _configured(
    setting: Setting, node: ast.expr, module: Module, study: Study, *, optim: bool
) -> Setting:
    """Add what a ``FullStateDictConfig(...)`` or a sibling says."""
    offload = setting.optim_offload if optim else setting.offload
    rank0 = False
    for value in study.values(node, module):
        if isinstance(value, Constant) and value.value is None:
            continue
        name = fsdp1.canonical(value.made_by) if isinstance(value, Made) else None
        if name is None or not name.endswith("StateDictConfig"):
            return replace(setting, problem=f"{ast.unparse(node)} is only known at run time")
        assert isinstance(value.node, ast.Call)
        second = "rank0_only" if name.startswith("Full") else "_use_dtensor"
        bound = arguments(value.node, ("offload_to_cpu", second))
        if bound is None:
            return replace(setting, problem=f"the arguments of {name} cannot be read")
        for field, expression in bound.items():
            flag = study.literal(expression, value.module)
            if flag is None or not isinstance(flag.value, bool):
                spelled = ast.unparse(expression)
                return replace(setting, problem=f"{field}={spelled} is only known at run time")
            if field == "offload_to_cpu":
                offload = flag.value
            elif field == "rank0_only":
                rank0 = flag.value
    if optim:
        return replace(setting, optim_offload=offload, optim_rank0_only=rank0)
    return replace(setting, offload=offload, rank0_only=rank0)


def at(
    node: ast.AST,
    module: Module,
    models: frozenset[Constructor],
    study: Study,
    depth: int = 0,
) -> Setting:
    """The setting in force where ``node`` stands, for any of ``models``."""
    found = _context_at(node, module, models, study, depth)
    if found is not None:
        return found
    fixed = _set_globally(node, module, models, study)
    if fixed:
        if len(set(fixed)) > 1:
            return Setting(problem="set_state_dict_type is called with different settings")
        return fixed[0]
    return DEFAULT


def is_for_run_time(setting: Setting, study: Study) -> bool:
    """Whether the running program is to say which kind of state it is."""
    return bool(setting.problem) and not setting.gone and study.run_time_states


def given(setting: Setting, models: frozenset[Constructor], study: Study) -> Setting:
    """What a setting comes to for a model's own state, optimizers aside.

    Under NO_SHARD FSDP1 gave the whole state to every rank and moved it nowhere, whatever was set.
    """
    return DEFAULT if is_replicated(models, study) and not setting.problem else setting


def is_replicated(models: frozenset[Constructor], study: Study) -> bool:
    """Whether every rank has all of the models, as far as their strategies are written."""
    return {strategy.of(model, study) for model in models} == {"NO_SHARD"}


def is_in_context(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> bool:
    """Whether a ``state_dict_type`` context says what ``models`` give where ``node`` stands."""
    return _context_at(node, module, models, study, 0) is not None


def _context_at(
    node: ast.AST,
    module: Module,
    models: frozenset[Constructor],
    study: Study,
    depth: int,
) -> Setting | None:
    """The innermost ``state_dict_type`` context around a node, callers looked through."""
    function: ast.AST | None = None
    for parent in module.table.ancestors(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            for item in reversed(parent.items):
                if node is item.context_expr:
                    continue
                found = _entered(item.context_expr, module, models, study)
                if found is not None:
                    return found
        if isinstance(parent, FUNCTIONS):
            for decorator in getattr(parent, "decorator_list", ()):
                found = _entered(decorator, module, models, study)
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
        _context_at(site.call, site.module, models, study, depth + 1)
        for site in study.tracer.callers(function, module)
    ]
    distinct = set(outside)
    if len(distinct) > 1:
        return Setting(problem=MIXED)
    return distinct.pop() if distinct else None


def _entering(study: Study) -> set[ast.AST]:
    """The contexts that are being looked into."""
    return set()


def _entered(
    node: ast.expr, module: Module, models: frozenset[Constructor], study: Study
) -> Setting | None:
    """The setting that a ``with`` statement makes for ``models`` by what it enters.

    Also where that is a context manager of the project's around FSDP1's, or what a function or a
    name hands on.
    """
    if isinstance(node, ast.Call) and is_context(node, module, study):
        concerns = concerned(first_argument(node), module, study) & models
        return _read_at(node, module, study) if concerns else None
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
    return found.pop() if found else None


def _read_at(call: ast.Call, module: Module, study: Study) -> Setting:
    """As :func:`read`; what only the running program knows is lost with a branch that goes."""
    setting = read(call, module, study)
    if setting.problem and _goes(call, module, study):
        return replace(setting, gone=True)
    return setting


def _goes(call: ast.AST, module: Module, study: Study) -> bool:
    beside = {call, *module.table.ancestors(call)}
    return any(not beside.isdisjoint(branch.rest or branch.node.body) for branch in study.branches)


def _found_in(
    node: ast.expr, module: Module, models: frozenset[Constructor], study: Study
) -> set[Setting | None]:
    found: set[Setting | None] = set()
    functions: list[Function] = []
    if isinstance(node, ast.Call):
        functions = around(node, module, study)
        if functions and len(functions) < len(study.values(node.func, module)):
            found.add(None)  # it may be something else that is called
    for function in functions:
        yields = [n for n in ast.walk(function.node) if isinstance(n, (ast.Yield, ast.YieldFrom))]
        for each in yields:
            found.add(_context_at(each, function.module, models, study, CONTEXT_DEPTH))
        for handed in _handed_out(function, study) if not yields else ():
            found.add(_entered(handed, function.module, models, study))
    if not functions and _knows_contexts(study):
        for value in study.values(node, module):
            if _has_own_context(value, study):
                found.add(Setting(problem=MIXED))
                continue
            entered = value.node if isinstance(value, Made) else None
            is_made = isinstance(entered, ast.Call) and entered is not node
            found.add(_entered(entered, value.module, models, study) if is_made else None)  # type: ignore[arg-type]
    return found


def _knows_contexts(study: Study) -> bool:
    return study.project.mentions("state_dict_type")


def _has_own_context(value: Value, study: Study) -> bool:
    """Whether a value is of a class of the project's that sets a kind of state when entered."""
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
        assert isinstance(call.func, ast.Attribute)
        scope = table.scope_of(call).function()
        same = (scope.node if scope is not None else None) is function
        if not same or _position(call) > _position(node):
            continue
        block = _block_of_stack(call.func.value, module)
        if block is not None and block not in table.ancestors(node):
            continue  # what was entered is left again
        what = call.args[0] if call.args else call.func.value
        setting = _entered(what, module, models, study)
        if setting is not None:
            found.add(setting)
            if block is None and _may_be_left(call.func.value, node, module):
                found.add(None)
            if not _certainly_before(call, node, module):
                found.add(None)
    if len(found) > 1:
        return Setting(problem=MIXED)
    return found.pop() if found else None


def _block_of_stack(stack: ast.expr, module: Module) -> ast.With | ast.AsyncWith | None:
    """The ``with ExitStack() as stack`` that leaves what is entered by a stack."""
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
        access_path(call.func.value) == path and _position(call) <= _position(node)
        for call in leaving
        if isinstance(call.func, ast.Attribute)
    )


def _certainly_before(call: ast.Call, node: ast.AST, module: Module) -> bool:
    """Whether no condition stands around a call that does not stand around ``node`` as well."""
    beside = set(module.table.ancestors(node))
    conditions = (ast.If, ast.IfExp, ast.For, ast.While, ast.Try, ast.BoolOp)
    return not any(
        isinstance(parent, conditions) and parent not in beside
        for parent in module.table.ancestors(call)
    )


def around(call: ast.Call, module: Module, study: Study) -> list[Function]:
    """The project's functions that a call may be of, where they know FSDP1's context manager."""
    functions = [v for v in study.values(call.func, module) if isinstance(v, Function)]
    return [
        f
        for f in functions
        if f.module.mentions("state_dict_type") and isinstance(f.node, ast.FunctionDef)
    ]


def _handed_out(function: Function, study: Study) -> Iterator[ast.expr]:
    """What a function returns to FSDP1 models: what a branch for them does, where it has one."""
    returns = [n for n in ast.walk(function.node) if isinstance(n, ast.Return)]
    own = [n for n in returns if _goes(n, function.module, study)]
    for node in own or returns:
        if node.value is not None:
            yield node.value


def is_context(node: ast.expr, module: Module, study: Study) -> bool:
    """Whether an expression is a call of FSDP1's ``state_dict_type`` context manager."""
    if not isinstance(node, ast.Call):
        return False
    return _is_static(node, "state_dict_type", module, study)


def _is_static(call: ast.Call, name: str, module: Module, study: Study) -> bool:
    """Whether a static of FSDP1 is called, on the class or, as Python has it too, on a model."""
    func = call.func
    if f"{fsdp1.FSDP}.{name}" in {fsdp1.canonical(q) for q in study.external(func, module)}:
        return True
    if not isinstance(func, ast.Attribute) or func.attr != name:
        return False
    return bool(study.models(func.value, module).constructors)


def first_argument(call: ast.Call, name: str = "module") -> ast.expr | None:
    if call.args and not isinstance(call.args[0], ast.Starred):
        return call.args[0]
    return next((k.value for k in call.keywords if k.arg == name), None)


def concerned(node: ast.expr | None, module: Module, study: Study) -> frozenset[Constructor]:
    """The models that a static is about which is given ``node``, a model or what holds some."""
    parts = holders.held(node, module, study) if node is not None else holders.Held()
    return parts.constructors or study.models_of_static(node, module).constructors


def _set_globally(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> list[Setting]:
    """The settings of ``set_state_dict_type`` that may be in force where ``node`` stands."""
    found = []
    for call, where in setters(study).items():
        if not concerned(first_argument(call), where, study) & models:
            continue
        order = _order(call, where, node, module, models, study)
        if order is not Order.LATER:
            found.append(_read_at(call, where, study))
        if order is Order.UNKNOWN:
            found.append(DEFAULT)
    for entered, where in _kept_open(study):
        if _entered(entered, where, models, study) is not None:
            found += [DEFAULT, Setting(problem=MIXED)]
    return found


def _kept_open(study: Study) -> Iterator[tuple[ast.expr, Module]]:
    """What is entered by objects that outlive the function: ``self.stack.enter_context(...)``."""
    for module in study.project.modules:
        for name in ("enter_context", "__enter__") if _knows_contexts(study) else ():
            for call in module.table.methods.get(name, ()):
                stack = call.func.value if isinstance(call.func, ast.Attribute) else None
                if isinstance(stack, ast.Attribute):
                    yield (call.args[0] if call.args else stack), module


class Order(Enum):
    """When a model is set to a kind of state, seen from where its state is asked for."""

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
    """A setting in another function is taken to be made first, where no condition is around it."""
    going = {branch.node for branch in study.branches}  # which ran for FSDP1's models
    if may_not_run(call, where, models, going) is not None:
        return Order.UNKNOWN
    function = enclosing_function(where, call)
    same = where is module and enclosing_function(module, node) is function
    if not same or node is call or _position(node) > _position(call):
        return Order.EARLIER
    loops = [p for p in where.table.ancestors(call) if isinstance(p, (ast.For, ast.While))]
    fresh = any(c.module is where and enclosing_function(where, c.call) is function for c in models)
    if fresh and not any(node is n for loop in loops for n in ast.walk(loop)):
        return Order.LATER
    return Order.UNKNOWN


def _position(node: ast.AST) -> tuple[int, int]:
    assert isinstance(node, (ast.expr, ast.stmt))
    return node.lineno, node.col_offset


def is_surely_set(
    node: ast.AST, module: Module, models: frozenset[Constructor], study: Study
) -> bool:
    """Whether a model has been set to some kind of state where ``node`` stands, in any case.

    What another function sets may come later, or not at all.
    """
    context = _context_at(node, module, models, study, 0)
    if context is not None:
        return context.problem != MIXED
    function = enclosing_function(module, node)
    return any(
        where is module
        and enclosing_function(where, call) is function
        and concerned(first_argument(call), where, study) & models
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
        and _is_static(call, "set_state_dict_type", module, study)
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
    """Whether a model is set to some state whatever conditions hold."""
    for statement in block:
        match statement:
            case ast.If(body=body, orelse=orelse) if _sets(body) and _sets(orelse):
                return True
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="set_state_dict_type"))):
                return True
    return False


def config_users(site: Site) -> list[ast.Name] | None:
    """The uses of the name a configuration object is assigned to; None when it has no name."""
    table = site.module.table
    statement = table.parents[site.node]
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name):
        return None
    owner = table.within[target]
    return [
        n
        for n in table.names
        if n.id == target.id
        and isinstance(n.ctx, ast.Load)
        and table.within[n].lookup(n.id) is owner
    ]
