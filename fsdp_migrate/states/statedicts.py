"""Which kind of state dict FSDP1 would give at a place in the code.

FSDP1 chooses by state hidden in the model: a ``state_dict_type`` context around the call, an
earlier ``set_state_dict_type``, or the default, which is FULL on every rank. FSDP2 chooses at the
call.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace

from fsdp_migrate import fsdp1
from fsdp_migrate.construct import strategy
from fsdp_migrate.construct.sharding import Constructor
from fsdp_migrate.names import FUNCTIONS
from fsdp_migrate.sites import Site
from fsdp_migrate.states import holders
from fsdp_migrate.study import Study
from fsdp_migrate.trace.project import Module
from fsdp_migrate.trace.values import Constant, External, Made

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
    fixed = _set_globally(models, study)
    if fixed:
        if len(set(fixed)) > 1:
            return Setting(problem="set_state_dict_type is called with different settings")
        return fixed[0]
    return DEFAULT


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
                call = item.context_expr
                if is_context(call, module, study) and node is not call:
                    assert isinstance(call, ast.Call)
                    if concerned(first_argument(call), module, study) & models:
                        return read(call, module, study)
        if isinstance(parent, FUNCTIONS):
            function = parent
            break
    if function is None or depth >= CONTEXT_DEPTH:
        return None
    assert isinstance(function, FUNCTIONS)
    outside = [
        _context_at(site.call, site.module, models, study, depth + 1)
        for site in study.tracer.callers(function, module)
    ]
    distinct = set(outside)
    if len(distinct) > 1:
        return Setting(problem="it is called inside and outside a state_dict_type context")
    return distinct.pop() if distinct else None


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


def _set_globally(models: frozenset[Constructor], study: Study) -> list[Setting]:
    found = []
    for module in study.project.modules:
        for call in module.table.calls if module.mentions("set_state_dict_type") else ():
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "set_state_dict_type":
                continue
            if not _is_static(call, "set_state_dict_type", module, study):
                continue
            if concerned(first_argument(call), module, study) & models:
                found.append(read(call, module, study))
    return found


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
