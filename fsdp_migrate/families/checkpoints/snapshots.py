"""States that are kept in memory while training goes on.

FSDP1's states were copies. ``get_model_state_dict`` hands out the parameters themselves when the
state is sharded, and on one rank also when it is whole: what is saved at once does not care, the
best state so far would follow the training.
"""

from __future__ import annotations

import ast
import re

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import External, Function
from fsdp_migrate.families.checkpoints.later_uses import LaterUses
from fsdp_migrate.families.wrapping import devices, offloading
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import given_arguments, last_name
from fsdp_migrate.syntax.trees import FUNCTIONS

DEPTH = 6  # how many names, calls and callers a state is followed through
CONTAINERS = frozenset({"append", "appendleft", "setdefault", "insert"})
SHALLOW = frozenset(
    {"builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict", "copy.copy"}
)
# What functions do that are given a state and do not keep it, as their names say.
USING_UP = re.compile(
    r"save|deepcopy|clone|dump|write|print|log|load|send|upload|broadcast|export|compare|equal"
    r"|assert|verify|_eq$|^(len|isinstance|hasattr|type|bool|str|repr|any|all|id)$"
)
# What gives the memory that it is asked of, if there is nothing to convert.
SAME = frozenset({"detach", "to_local", "view", "contiguous", "to", "cpu", "cuda", "float"})
SAME |= {"double", "half", "bfloat16", "type"}
Assignment = ast.Assign | ast.AnnAssign
HOLDING = (ast.Dict, ast.Tuple, ast.List, ast.IfExp, ast.NamedExpr)


def is_kept(site: Site, study: Study, *, aliases: bool = False) -> bool:
    """Whether the state asked for at ``site`` is still used after the next training step.

    Args:
        aliases: its tensors are the parameters, so that whoever is given it may keep them.
    """
    return _is_kept(site.node, site.module, study, DEPTH, aliases=aliases)


def _is_kept(
    node: ast.AST,
    module: Module,
    study: Study,
    depth: int,
    *,
    aliases: bool = False,
    called_at: tuple[ast.Call, Module] | None = None,
) -> bool:
    """Whether a state is kept; ``called_at``: the call that gave it to the function around it."""
    around: ast.AST | None = node
    while around is not None:
        node, around = around, _holder(around, module, study)
        if isinstance(node, ast.NamedExpr) and _is_used_later(node.target, node, module, study):
            return True
    parent = module.table.parents[node]
    if isinstance(parent, ast.keyword):
        node, parent = parent, module.table.parents[parent]
    if isinstance(parent, ast.Call) and node in (*parent.args, *parent.keywords):
        name = last_name(parent.func)
        if isinstance(parent.func, ast.Attribute) and name in CONTAINERS:
            return True
        if not aliases or _uses_up(parent, module, study):
            return False
        return _keeps(parent, node, module, study, depth)
    if isinstance(parent, ast.Return) and depth:
        function = enclosing_function(module, node)
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        callers = [(c.call, c.module) for c in study.tracer.callers(function, module)]
        known = callers if called_at is None else [called_at]
        return any(_is_kept(*each, study, depth - 1, aliases=aliases) for each in known)
    if isinstance(parent, ast.For) and node is parent.iter:
        taken = _variable(parent.target)
        inside = (n for each in parent.body for n in ast.walk(each) if isinstance(n, ast.Name))
        return depth > 0 and any(
            _is_kept(n, module, study, depth - 1) for n in inside if n.id == taken
        )
    if isinstance(parent, (ast.Yield, ast.YieldFrom)):
        return True  # whoever gets it goes on when it wants to
    if not isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return False
    targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
    if any(_holds(target, parent, module, study) for target in targets):
        return True
    function = enclosing_function(module, node)
    names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    uses = (use for name in names for use in _uses(name, parent, function, module, study))
    return depth > 0 and any(
        _is_kept(use, module, study, depth - 1, aliases=aliases, called_at=called_at)
        for use in uses
    )


def _holder(node: ast.AST, module: Module, study: Study) -> ast.AST | None:
    """The expression around a state that has its very tensors: a display, or a shallow copy."""
    parent = module.table.parents[node]
    if isinstance(parent, HOLDING):
        return parent
    if _is_same_tensor(parent, node):
        return parent
    if isinstance(parent, ast.keyword):  # dict(model=state)
        node, parent = parent, module.table.parents[parent]
    if isinstance(parent, ast.Call) and node in (*parent.args, *parent.keywords):
        called = study.values(parent.func, module)
        return (
            parent if any(isinstance(v, External) and v.name in SHALLOW for v in called) else None
        )
    call = module.table.parents[parent] if isinstance(parent, ast.Attribute) else None
    if not isinstance(call, ast.Call) or not isinstance(parent, ast.Attribute):
        return None
    is_same = _gives_same(call, parent.attr, module, study)
    if not is_same and parent.attr not in {"copy", "items", "values"}:
        return None
    loop = module.table.parents[call]
    if not isinstance(loop, ast.comprehension):
        return call
    whole = module.table.parents[loop]
    value = getattr(whole, "value", getattr(whole, "elt", None))
    name = _variable(loop.target)
    return whole if value is not None and _is_element(value, name, module, study) else None


def _variable(target: ast.expr) -> str:
    """``v`` of ``for k, v in state.items()``."""
    return last_name(target.elts[-1] if isinstance(target, (ast.Tuple, ast.List)) else target)


def _is_element(value: ast.expr, name: str, module: Module, study: Study) -> bool:
    """``v``, ``v.detach()`` and ``(k, v)``, and not ``v.clone()``."""
    match value:
        case ast.Name():
            return value.id == name
        case ast.Tuple(elts=elements):
            return any(_is_element(each, name, module, study) for each in elements)
        case ast.Call(func=ast.Attribute(value=inner, attr=attr)):
            is_same = _gives_same(value, attr, module, study)
            return is_same and _is_element(inner, name, module, study)
        case ast.Attribute(value=inner, attr="data"):
            return _is_element(inner, name, module, study)
    return False


def _gives_same(call: ast.Call, method: str, module: Module, study: Study) -> bool:
    """Whether a tensor's method may give the very memory that the tensor has."""
    if method not in SAME or any(k.arg == "copy" for k in call.keywords):
        return False
    given = [devices.read_value(each, module, study).certain for each in given_arguments(call)]
    to_cpu = method == "cpu" or (method in {"to", "type"} and "cpu" in given)
    return not to_cpu or study.cache(_may_be_on_cpu)


def _may_be_on_cpu(study: Study) -> bool:
    """Whether parameters of some sharded model may be on the CPU, by what its wrap says: without a
    word they are on the accelerator."""
    return any(
        not devices.read(each, study).is_accelerator or offloading.may_offload(each, study)
        for each in study.every_constructor
    )


def _is_same_tensor(parent: ast.AST, node: ast.AST) -> bool:
    """``v.data`` of ``v``."""
    return isinstance(parent, ast.Attribute) and parent.attr == "data" and parent.value is node


def _uses_up(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call does at once with a state what it does with it, as its name says."""
    names = study.external(call.func, module)
    is_torchs = any(name.startswith("torch.") for name in names)
    return is_torchs or USING_UP.search(last_name(call.func)) is not None


def _keeps(call: ast.Call, given: ast.AST, module: Module, study: Study, depth: int) -> bool:
    """Whether the project's functions that are called, or whom they return to, keep what they are
    given; True of others."""
    functions = study.values(call.func, module)
    if not functions or not depth:
        return True
    value = given.value if isinstance(given, ast.keyword) else given
    for function in functions:
        if not isinstance(function, Function) or not isinstance(function.node, ast.FunctionDef):
            return True
        arguments = function.node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        callers = study.tracer.callers(function.node, function.module)
        own = [c for c in callers if c.call is call]
        names = [
            p.arg for p in parameters if any(c.argument(function.node, p.arg) is value for c in own)
        ]
        uses = [n for n in ast.walk(function.node) if isinstance(n, ast.Name) and n.id in names]
        outside = [n for n in uses if enclosing_function(function.module, n) is not function.node]
        if len(names) != 1 or outside:
            return True
        if uses and _is_used_later(uses[0], function.node, function.module, study):
            return True
        inside = (function.module, study, depth - 1)
        if any(_is_kept(n, *inside, aliases=True, called_at=(call, module)) for n in uses):
            return True
    return False


def _holds(target: ast.expr, assignment: Assignment, module: Module, study: Study) -> bool:
    """Whether what is assigned is used after a training step."""
    adds = False
    while isinstance(target, ast.Subscript):
        adds = adds or not isinstance(target.slice, ast.Constant)
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(_holds(each, assignment, module, study) for each in target.elts)
    if isinstance(target, ast.Attribute):
        return True  # of an object that is still there
    if not isinstance(target, ast.Name):
        return False
    return _is_used_later(target, assignment, module, study, adds=adds)


def _is_used_later(
    name: ast.Name, origin: ast.AST, module: Module, study: Study, *, adds: bool = False
) -> bool:
    """Whether the value that a name gets at ``origin`` is used after a training step."""
    table = module.table
    function = origin if isinstance(origin, FUNCTIONS) else enclosing_function(module, origin)
    owner = table.scope_of(name).lookup(name.id)
    every = [
        each
        for each in table.names_by_id.named(name.id)
        if table.within[each].lookup(each.id) is owner
    ]
    reads = [
        each
        for each in every
        if isinstance(each.ctx, ast.Load) and not is_subscripted_target(each, module)
    ]
    if any(enclosing_function(module, each) is not function for each in reads):
        return True  # in a function that may be called at any time
    stores = [each for each in every if not isinstance(each.ctx, ast.Load)]
    uses = [each for each in reads if not _asks_for_none(each, module)]
    return bool(LaterUses(origin, uses, stores, function, module, study, adds=adds).found())


def _asks_for_none(name: ast.Name, module: Module) -> bool:
    """``best is None``, which looks at no tensor."""
    match module.table.parents[name]:
        case ast.Compare(ops=[ast.Is() | ast.IsNot()]):
            return True
    return False


def _uses(
    target: ast.Name, assignment: Assignment, function: ast.AST, module: Module, study: Study
) -> list[ast.Name]:
    """The uses of a name that what is assigned may reach, by itself or put into it under a key."""
    table = module.table
    is_put_in = is_subscripted_target(target, module)
    owner = table.scope_of(target).lookup(target.id)
    return [
        node
        for node in table.names
        if node.id == target.id
        and isinstance(node.ctx, ast.Load)
        and table.within[node].lookup(node.id) is owner
        and not is_subscripted_target(node, module)
        and enclosing_function(module, node) is function
        and (is_put_in or _reaches(assignment, node, module, study))
    ]


def _reaches(assignment: Assignment, use: ast.Name, module: Module, study: Study) -> bool:
    """Whether a use of a name may mean what is assigned, and not only what others assign to it."""
    values = [d.value for d in study.defined_by(use, module)]
    return not values or None in values or assignment.value in values


def is_subscripted_target(node: ast.expr, module: Module) -> bool:
    """``states["model"] = ...``, where ``states`` is read only to be written to."""
    parent = module.table.parents[node]
    while isinstance(parent, ast.Subscript) and parent.value is node:
        if isinstance(parent.ctx, ast.Store):
            return True
        node, parent = parent, module.table.parents[parent]
    return False
