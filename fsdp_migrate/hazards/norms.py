"""Norms of gradients that are those of one rank's shards."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.families.wrapping import fully_sharded
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.hazards import everywhere
from fsdp_migrate.hazards.parameters import model_of
from fsdp_migrate.planning.context import Study
from fsdp_migrate.planning.edits import Edit, ReplaceExpression, code
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import FUNCTIONS

LOCAL = ("to_local", "_local_tensor")  # what this rank holds
NORMS = frozenset({"norm", "vector_norm", "get_total_norm", "_foreach_norm"})
SQUARES = frozenset({"pow", "square"})
MEANT = re.compile(r"local|shard|rank", re.IGNORECASE)  # whoever says so wants one rank's
REDUCES = re.compile(r"reduce|gather|full_tensor|redistribute|from_local|broadcast|sync_dist")


@dataclass(frozen=True)
class LocalNorm:
    """A gradient of which only this rank's part is in a norm of all."""

    gradient: ast.expr
    is_sharded: bool  # whatever its model may be
    edits: tuple[Edit, ...] = ()  # what makes it the whole one, where that is plainly right


def find_local(study: Study, module: Module) -> Iterator[LocalNorm]:
    """The gradients of models that are sharded, or may be, of which only this rank's part is in a
    norm of all."""
    if not module.mentions(*LOCAL):
        return
    for read in module.table.attributes_by_name.of(LOCAL):
        gradient = read.value
        if not isinstance(gradient, ast.Attribute) or gradient.attr != "grad":
            continue
        model = model_of(gradient.value, module)
        if model is None or not _is_joined(read, module, Seen(), frozenset()):
            continue
        values = study.values(model, module)
        known = fully_sharded.sharded(study)
        sharded = [v for v in values if v in known]
        if not sharded or may_be_reduced(read, module, study):
            continue
        is_sharded = len(sharded) == len(values)
        calls = [sharding.call for value in sharded for sharding in known[value]]
        plain = is_sharded and not any(map(may_offload, calls))
        yield LocalNorm(gradient, is_sharded, _whole(read, module, study) if plain else ())


def may_offload(sharding: ast.Call) -> bool:
    """Whether gradients may be on the CPU, where not every backend gathers."""
    return any(keyword.arg in {"offload_policy", None} for keyword in sharding.keywords)


def _whole(read: ast.Attribute, module: Module, study: Study) -> tuple[Edit, ...]:
    """``full_tensor()`` in the place of what is read of a gradient, where all ranks get there."""
    gradient, parent = read.value, module.table.parents[read]
    replaced: ast.expr = read
    if isinstance(parent, ast.Call) and parent.func is read:
        replaced = parent
        if parent.args or parent.keywords:
            return ()
    if (replaced is read) is (read.attr == "to_local"):
        return ()
    if not everywhere.is_run_by_all(read, module, study, names_in(gradient)):
        return ()
    return (ReplaceExpression(module, replaced, code("{g}.full_tensor()", g=gradient)),)


class Seen(NamedTuple):
    """What has become of a tensor."""

    is_square: bool = False
    is_norm: bool = False  # or a sum of squares
    is_listed: bool = False  # with those of other parameters


def _is_joined(node: ast.AST, module: Module, seen: Seen, names: frozenset[str]) -> bool:
    """Whether a tensor comes into one number with those of other parameters, as a norm, in its
    statement or by the names that it gets."""
    parents = module.table.parents
    while isinstance(node, ast.expr):
        parent = parents[node]
        match parent:
            case ast.AugAssign(target=target, op=ast.Add()):
                return seen.is_norm and not is_meant(target)
            case ast.Assign(targets=[ast.Name(id=name)]):
                if seen.is_norm and name in names_in(node):
                    return not MEANT.search(name)
                return _is_joined_by_name(name, node, module, seen, names)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element) if element is node:
                seen = seen._replace(is_listed=True)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append")):
                listed = seen._replace(is_listed=True)
                return _is_joined_by_name(name, node, module, listed, names)
            case ast.Call() if node is not parent.func:
                seen, joined = _applied(last_name(parent.func), seen)
                if joined:
                    return not _is_named_as_local(parent, module)
            case ast.Attribute(attr=name):
                seen, joined = _applied(name, seen)
                if joined:
                    return not _is_named_as_local(parent, module)
            case ast.BinOp(left=left, op=ast.Pow()) if left is node:
                seen = seen._replace(is_square=True)
            case ast.Call() | ast.IfExp() | ast.BinOp():
                pass
            case _:
                return False
        node = parent
    return False


def _is_named_as_local(node: ast.expr, module: Module) -> bool:
    """Whether what is assigned in a statement is said to be one rank's."""
    statement = module.table.statement(node)
    return isinstance(statement, ast.Assign) and any(map(is_meant, statement.targets))


def _applied(name: str, seen: Seen) -> tuple[Seen, bool]:
    """What a function makes of a tensor, and whether that is the norm of several."""
    norms = name in NORMS or (name == "sum" and (seen.is_square or seen.is_norm))
    square = seen.is_square or name in SQUARES
    return Seen(square, seen.is_norm or norms, seen.is_listed), norms and seen.is_listed


def _is_joined_by_name(
    name: str, node: ast.AST, module: Module, seen: Seen, names: frozenset[str]
) -> bool:
    if name in names or (seen.is_norm and MEANT.search(name)):
        return False  # a gradient may well be called local, and its norm be meant for all
    scope = module.table.scope_of(node)
    return any(
        _is_joined(use, module, seen, names | {name})
        for use in module.table.names_by_id.named(name)
        if isinstance(use.ctx, ast.Load) and module.table.scope_of(use) is scope
    )


def is_meant(target: ast.expr) -> bool:
    return MEANT.search(ast.unparse(target)) is not None


def may_be_reduced(read: ast.expr, module: Module, study: Study) -> bool:
    """Whether a function, or one that gets its result, may make one number of all ranks', or says
    that it wants one rank's."""
    reducing = study.cache(_names_that_reduce)
    waiting = [(enclosing_function(module, read), module)]
    seen: set[ast.AST | None] = set()
    for function, where in waiting:
        if function in seen:
            continue
        seen.add(function)
        around = function if isinstance(function, FUNCTIONS) else where.source.tree
        calls = [node for node in ast.walk(around) if isinstance(node, ast.Call)]
        names = {k.arg or "" for call in calls for k in call.keywords}
        names |= {last_name(call.func) for call in calls}
        if any(name in reducing or REDUCES.search(name) for name in names):
            return True
        if isinstance(function, FUNCTIONS):
            if MEANT.search(getattr(function, "name", "")):
                return True
            if any(each.value is not None for each in where.table.returns.get(function, ())):
                callers = study.tracer.callers(function, where)
                waiting += [(enclosing_function(c.module, c.call), c.module) for c in callers]
    return False


def _names_that_reduce(study: Study) -> frozenset[str]:
    """The names of the project's functions that may lead to a collective, by their text."""
    modules = study.project.modules
    new = {name for m in modules for name in m.table.calls_by_name.names if REDUCES.search(name)}
    found: set[str] = set()
    while new:
        found |= new
        around = {
            getattr(enclosing_function(module, call), "name", "")
            for module in modules
            for call in module.table.calls_by_name.of(new)
        }
        new = around - found - {""}
    return frozenset(found)
