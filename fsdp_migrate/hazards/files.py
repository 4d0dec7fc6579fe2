"""Checkpoints of sharded models that hold one rank's shards, and loads that load nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Made
from fsdp_migrate.families.checkpoints import ranks
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards.guards import is_of_one
from fsdp_migrate.hazards.order import function_scope
from fsdp_migrate.hazards.settings import is_sharded_if_at_all
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import first_argument, last_name
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS, position, walk

SAVE = "torch.save"
GETTER = "torch.distributed.checkpoint.state_dict.get_model_state_dict"
STATE = "state_dict"
CHECKPOINTS = "torch.distributed.checkpoint."
LOADS = frozenset({"load", "load_state_dict"})
OF_RANK = re.compile(r"rank|shard|world|mesh|coord", re.I)  # a file of each rank
HOOKS = frozenset({"_register_state_dict_hook", "register_state_dict_post_hook"})
# Who says one of these in the same function has whole parameters there.
WHOLE = frozenset({"unshard", "full_tensor", "summon_full_params", "gather_object"})
READING = frozenset({"keys", "len", "print"})  # of a state that stays as it is


def find_saved(study: Study, module: Module) -> Iterator[ast.Call]:
    """Calls of ``torch.save`` with what ``state_dict()`` of a sharded model gives, that write one
    file: by one rank, or by all to one path."""
    if any(m.mentions(*HOOKS) for m in study.project.modules):
        return
    for call in module.table.calls_by_name.named("save"):
        if study.external(call.func, module) != {SAVE}:
            continue
        saved, path = _given(call, 0, "obj"), _given(call, 1, "f")
        if saved is None or path is None or _mentions(path, OF_RANK, call, module):
            continue
        if not isinstance(path, ast.Constant) and not _is_of_one_rank(call, module):
            continue
        if not _is_said(call, module, WHOLE) and any(
            is_sharded_if_at_all(model, at, module, study) and _is_torchs(model, module, study)
            for model, at in states(saved, call, module, study)
        ):
            yield call


def _given(call: ast.Call, place: int, name: str) -> ast.expr | None:
    if place < len(call.args):
        return call.args[place]
    return next((k.value for k in call.keywords if k.arg == name), None)


def _mentions(path: ast.expr, pattern: re.Pattern[str], call: ast.Call, module: Module) -> bool:
    """Whether a path, or what its names are bound to in the function, has such a word."""
    table = module.table
    scope = table.scope_of(call)
    waiting, seen = [path], set[str]()
    for each in waiting:
        if pattern.search(ast.unparse(each)):
            return True
        for name in (n.id for n in walk(each) if isinstance(n, ast.Name) and n.id not in seen):
            seen.add(name)
            found = scope.lookup(name)
            bindings = found.bindings[name] if found is not None else []
            waiting += [b.value for b in bindings if isinstance(b.value, ast.expr)]
    return False


def _is_of_one_rank(call: ast.Call, module: Module) -> bool:
    """Whether one rank alone gets to a call, by a condition in its function."""
    return any(is_of_one(guard) for guard in ranks.guards(call, module))


def _is_said(call: ast.Call, module: Module, words: frozenset[str]) -> bool:
    function = enclosing_function(module, call)
    around = function if isinstance(function, FUNCTIONS) else module.source.tree
    return any(last_name(each) in words for each in ast.walk(around))


def states(
    node: ast.expr, call: ast.Call, module: Module, study: Study
) -> Iterator[tuple[ast.expr, ast.Call]]:
    """The models whose states are in what is saved, as they are, and where they are asked."""
    match node:
        case ast.Dict(values=values):
            for value in values:
                yield from states(value, call, module, study)
        case ast.Call(func=ast.Attribute(value=model, attr=name), args=[], keywords=[]):
            if name == STATE:
                yield model, node
        case ast.Call(args=[model], keywords=[]):
            if study.external(node.func, module) == {GETTER}:
                yield model, node
        case ast.Name():
            for definition in _only(node, call, module, study):
                yield from states(definition, call, module, study)


def _only(name: ast.Name, call: ast.Call, module: Module, study: Study) -> list[ast.expr]:
    """What a name of the function is bound to, if nothing else may change that."""
    table = module.table
    scope = table.scope_of(call)
    if name.id not in scope.bindings:
        return []
    bindings = scope.bindings[name.id]
    if len(bindings) != 1 or bindings[0].kind is not Kind.ASSIGN or bindings[0].unpack:
        return []
    for use in table.reads(name.id, scope):
        parent = table.parents[use]
        if isinstance(parent, ast.Call) and use in parent.args:
            if study.external(parent.func, module) != {SAVE} and last_name(parent.func) not in (
                READING
            ):
                return []
        elif not (isinstance(parent, ast.Dict) or _is_read(parent)):
            return []
    return [bindings[0].value] if bindings[0].value is not None else []


def _is_read(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in READING


def _is_torchs(model: ast.expr, module: Module, study: Study) -> bool:
    """Whether no class of the project says what ``state_dict()`` of a model gives."""
    classes = [
        each
        for value in study.values(model, module)
        if isinstance(value, Made) and isinstance(value.callee, Class)
        for each in study.tracer.lineage(value.callee)
    ]
    return not any(getattr(s, "name", "") == STATE for each in classes for s in each.node.body)


def find_empty_loads(study: Study, module: Module) -> Iterator[ast.Call]:
    """Calls of ``torch.distributed.checkpoint.load`` that are given an empty dictionary."""
    for call in module.table.calls_by_name.of(LOADS):
        names = study.external(call.func, module)
        if not names or not all(name.startswith(CHECKPOINTS) for name in names):
            continue
        given = first_argument(call, STATE)
        if given is None or any(k.arg in {"planner", None} for k in call.keywords):
            continue  # a planner may fill it
        if _is_empty(given) or (isinstance(given, ast.Name) and _is_unfilled(given, call, module)):
            yield call


def _is_empty(node: ast.AST | None) -> bool:
    """``{}``, ``dict()``"""
    match node:
        case ast.Dict(keys=[]) | ast.Call(func=ast.Name(id="dict"), args=[], keywords=[]):
            return True
    return False


def _is_unfilled(name: ast.Name, call: ast.Call, module: Module) -> bool:
    """Whether a variable of the function is an empty dictionary that nothing touches before."""
    table = module.table
    scope = table.scope_of(name)
    bindings = scope.bindings.get(name.id, [])
    if scope is not function_scope(call, module) or len(bindings) != 1:
        return False
    made = bindings[0]
    if made.kind is not Kind.ASSIGN or made.unpack or not _is_empty(made.value):
        return False
    if any(isinstance(parent, LOOPS) for parent in table.ancestors(call)):
        return False
    before = [n for n in table.reads(name.id, scope) if position(n) < position(name)]
    elsewhere = [n for n in table.reads(name.id, scope) if table.scope_of(n) is not scope]
    return not before and not elsewhere
