"""Whether a state is written to a file: itself, in a dictionary, or as a copy of its entries."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Function
from fsdp_migrate.families.checkpoints import hoisting
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.fsdp1.site import Site
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name, names_in
from fsdp_migrate.syntax.trees import walk

DEFINED = (ast.FunctionDef, ast.AsyncFunctionDef)
COPYING = frozenset({"dict", "OrderedDict", "copy", "deepcopy", "list", "tuple", "sorted"})
ENTRIES = frozenset({"items", "values", "copy", "get", "pop"})
FILLING = frozenset({"update", "append", "extend", "setdefault", "__setitem__"})
# What makes a tensor of another, of which each rank has its part as before.
SAME = frozenset(
    {"cpu", "cuda", "to", "clone", "detach", "half", "float", "double", "bfloat16", "contiguous"}
)
_Place = tuple[ast.AST, Module]


def may_be_saved(site: Site, study: Study) -> bool:
    """Whether ``torch.save`` may be given what a state has."""
    waiting: list[_Place] = [(site.node, site.module)]
    seen = set(waiting)
    while waiting:
        node, module = waiting.pop()
        if hoisting.is_written(node, module, study):
            return True
        found = {*_around(node, module), *_elsewhere(node, module, study)} - seen
        waiting += found
        seen |= found
    return False


def _around(node: ast.AST, module: Module) -> Iterator[_Place]:
    """What has the entries of a value, or some of them, in the same file."""
    parent = module.table.parents[node]
    found: list[ast.AST] = []
    match parent:
        case ast.Attribute(attr=name) if name in ENTRIES | SAME:
            call = module.table.parents[parent]
            found = [call] if isinstance(call, ast.Call) and call.func is parent else []
        case ast.Call(func=function) if node is not function:
            if last_name(function) in COPYING:
                found = [parent]
            elif isinstance(function, ast.Attribute) and function.attr in FILLING:
                found = _reads_of(function.value, module)
        case ast.comprehension(iter=entries, target=target) if entries is node:
            made = module.table.parents[parent]
            found = [made] if _takes(made, target) else []
        case ast.DictComp(value=given) | ast.ListComp(elt=given) if given is node:
            found = [parent]
        case ast.Subscript(value=given) if given is node and isinstance(parent.ctx, ast.Load):
            found = [parent]
        case ast.For(iter=entries, target=target) if entries is node:
            names = _values_of(target)
            found = [n for n in walk(parent) if isinstance(n, ast.Name) and n.id in names]
        case ast.Assign(targets=targets, value=value) if value is node:
            owners = (t.value if isinstance(t, ast.Subscript) else t for t in targets)
            found = [name for owner in owners for name in _reads_of(owner, module)]
        case ast.AnnAssign(target=target, value=value) if value is node:
            found = _reads_of(target, module)
        case ast.NamedExpr(target=target):
            found = [parent, *_reads_of(target, module)]
        case ast.Dict() | ast.List() | ast.Tuple() | ast.IfExp() | ast.BinOp() | ast.BoolOp():
            found = [parent]
        case ast.Starred() | ast.keyword():
            found = [parent]
    yield from ((each, module) for each in found)


def _elsewhere(node: ast.AST, module: Module, study: Study) -> Iterator[_Place]:
    """Where a value is in the functions that it is given to, and in those that get it back."""
    parent = module.table.parents[node]
    function = enclosing_function(module, node)
    if isinstance(parent, ast.Return) and isinstance(function, DEFINED):
        for caller in study.tracer.callers(function, module):
            yield caller.call, caller.module
    call = module.table.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or call.func is node:
        return
    for value in study.values(call.func, module):
        if not isinstance(value, Function) or not isinstance(value.node, DEFINED):
            continue
        own = [c for c in study.tracer.callers(value.node, value.module) if c.call is call]
        taken = value.node.args
        for each in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs):
            if any(c.argument(value.node, each.arg) is node for c in own):
                table = value.module.table
                names = table.reads(each.arg, table.scopes[value.node])
                yield from ((name, value.module) for name in names)


def _takes(made: ast.AST, target: ast.expr) -> bool:
    """Whether a comprehension has the tensors that it goes over, and not only their names."""
    given = made.value if isinstance(made, ast.DictComp) else getattr(made, "elt", None)
    parts = given.elts if isinstance(given, ast.Tuple) else [given]
    return any(_tensor(part) in _values_of(target) for part in parts)


def _values_of(target: ast.expr) -> set[str]:
    """``value`` of ``for key, value in state.items()``."""
    parts = target.elts if isinstance(target, ast.Tuple) else [target]
    return names_in(parts[-1])


def _tensor(node: ast.AST | None) -> str:
    """``tensor`` of ``tensor.detach().cpu()``."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in SAME:
            return _tensor(inner)
    return ""


def _reads_of(target: ast.AST, module: Module) -> list[ast.AST]:
    """The uses of a variable, in whatever order they run."""
    if not isinstance(target, ast.Name):
        return []
    table = module.table
    return [*table.reads(target.id, table.scope_of(target).lookup(target.id))]
