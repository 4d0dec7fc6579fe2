"""States that are kept in memory while training goes on.

FSDP1's states were copies. ``get_model_state_dict`` hands out the parameters themselves when the
state is sharded, and on one rank also when it is whole: what is saved at once does not care, the
best state so far would follow the training.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.flow import access_path
from fsdp_migrate.analysis.module import Module
from fsdp_migrate.fsdp1 import references
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name

DEPTH = 3  # how many callers up a returned state is followed
CONTAINERS = frozenset({"append", "appendleft", "setdefault", "insert"})
SHALLOW = frozenset(
    {"builtins.dict", "builtins.list", "builtins.tuple", "collections.OrderedDict", "copy.copy"}
)
# What functions do that are given a state and do not keep it, as their names say.
USING_UP = re.compile(
    r"save|deepcopy|clone|dump|write|print|log|load|send|upload|broadcast|export|compare|^len$"
)
STEPS = frozenset({"backward", "step", "fit", "train_step", "training_step", "train_one_epoch"})
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Assignment = ast.Assign | ast.AnnAssign
HOLDING = (ast.Dict, ast.Tuple, ast.List, ast.IfExp, ast.NamedExpr)


def is_kept(site: Site, study: Study, *, aliases: bool = False) -> bool:
    """Whether the state asked for at ``site`` is still used after the next training step.

    Args:
        aliases: its tensors are the parameters, so that whoever is given it may keep them.
    """
    return _is_kept(site.node, site.module, study, DEPTH, aliases=aliases)


def _is_kept(
    node: ast.AST, module: Module, study: Study, depth: int, *, aliases: bool = False
) -> bool:
    around: ast.AST | None = node
    while around is not None:
        node, around = around, _holder(around, module, study)
    parent = module.table.parents[node]
    if isinstance(parent, ast.keyword):
        node, parent = parent, module.table.parents[parent]
    if isinstance(parent, ast.Call) and node in (*parent.args, *parent.keywords):
        name = last_name(parent.func)
        if isinstance(parent.func, ast.Attribute) and name in CONTAINERS:
            return True
        return aliases and not _uses_up(parent, module, study)
    if isinstance(parent, ast.Return) and depth:
        function = references.enclosing_function(module, node)
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        callers = study.tracer.callers(function, module)
        return any(_is_kept(c.call, c.module, study, depth - 1, aliases=aliases) for c in callers)
    if not isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return False
    targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
    if any(_holds(target, parent, module, study) for target in targets):
        return True
    function = references.enclosing_function(module, node)
    names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    uses = (use for name in names for use in _uses(name, parent, function, module, study))
    return depth > 0 and any(
        _is_kept(use, module, study, depth - 1, aliases=aliases) for use in uses
    )


def _holder(node: ast.AST, module: Module, study: Study) -> ast.AST | None:
    """The expression around a state that has its very tensors: a display, or a shallow copy."""
    parent = module.table.parents[node]
    if isinstance(parent, HOLDING):
        return parent
    if isinstance(parent, ast.Call) and node in parent.args:
        return parent if study.external(parent.func, module) & SHALLOW else None
    call = module.table.parents[parent] if isinstance(parent, ast.Attribute) else None
    if not isinstance(call, ast.Call) or not isinstance(parent, ast.Attribute):
        return None
    if parent.attr not in {"copy", "items", "values"}:
        return None
    loop = module.table.parents[call]
    if not isinstance(loop, ast.comprehension):
        return call
    whole = module.table.parents[loop]
    value = getattr(whole, "value", getattr(whole, "elt", None))
    return whole if isinstance(value, ast.Name) else None


def _uses_up(call: ast.Call, module: Module, study: Study) -> bool:
    """Whether a call does at once with a state what it does with it, as its name says."""
    names = study.external(call.func, module)
    is_torchs = any(name.startswith("torch.") for name in names)
    return is_torchs or USING_UP.search(last_name(call.func)) is not None


def _holds(target: ast.expr, assignment: Assignment, module: Module, study: Study) -> bool:
    """Whether what is assigned is used after a training step."""
    while isinstance(target, ast.Subscript):
        target = target.value
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(_holds(each, assignment, module, study) for each in target.elts)
    if isinstance(target, ast.Attribute):
        return True  # of an object that is still there
    if not isinstance(target, ast.Name):
        return False
    function = references.enclosing_function(module, assignment)
    loop = _loop(assignment, module)
    steps = list(training_calls(function))
    first = assignment.end_lineno or 0
    for use in _uses(target, assignment, function, module, study):
        if loop is not None and (
            loop not in module.table.ancestors(use) or use.lineno < assignment.lineno
        ):
            return True
        if any(first < step.lineno < use.lineno for step in steps):
            return True
    return False


def _uses(
    target: ast.Name, assignment: Assignment, function: ast.AST, module: Module, study: Study
) -> list[ast.Name]:
    """The uses of a name that what is assigned may reach."""
    table = module.table
    owner = table.scope_of(target).lookup(target.id)
    return [
        node
        for node in table.names
        if node.id == target.id
        and isinstance(node.ctx, ast.Load)
        and table.within[node].lookup(node.id) is owner
        and not is_subscripted_target(node, module)
        and references.enclosing_function(module, node) is function
        and _reaches(assignment, node, module, study)
    ]


def _reaches(assignment: Assignment, use: ast.Name, module: Module, study: Study) -> bool:
    """Whether a use of a name may mean what is assigned, and not only what others assign to it."""
    values = [d.value for d in study.defined_by(use, module)]
    return not values or None in values or assignment.value in values


def is_subscripted_target(node: ast.expr, module: Module) -> bool:
    """``states["model"] = ...``, where ``states`` is read only to be written to."""
    parent = module.table.parents[node]
    return isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Store)


def _loop(node: ast.AST, module: Module) -> ast.AST | None:
    """The outermost loop around a node in its function that trains, if any."""
    function = references.enclosing_function(module, node)
    found = None
    for parent in module.table.ancestors(node):
        if parent is function:
            break
        if isinstance(parent, LOOPS) and any(training_calls(parent)):
            found = parent
    return found


def training_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls that train."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            path = (access_path(call.func) or "").rpartition(".")
            name = path[2]
            trains = name.startswith("train") and not (path[0] and name == "train")
            if trains or name in STEPS:
                yield call
