"""Variables of a function that lose their last use: ``device = torch.device("cuda", rank)``.

The assignment goes, or only its target where the value does something: ``setup(rank)``.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.planning.edits import ReplaceStatement, code
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope
from fsdp_migrate.syntax.trees import walk

SHOWING = frozenset({"dir", "eval", "exec", "locals", "vars"})  # names that nobody spells
BUILTINS = frozenset(
    (
        *("abs", "all", "any", "bool", "callable", "dict", "float", "frozenset", "getattr"),
        *("hasattr", "id", "int", "isinstance", "issubclass", "len", "list", "max", "min"),
        *("range", "repr", "round", "set", "sorted", "str", "sum", "super", "tuple", "type"),
    )
)
MAKERS = frozenset(
    (
        *("contextlib.nullcontext", "datetime.timedelta", "functools.partial"),
        *("os.environ.get", "os.getenv", "torch.device", "torch.cuda.current_device"),
        *("torch.cuda.device_count", "torch.cuda.is_available"),
        *("torch.distributed.get_rank", "torch.distributed.get_world_size"),
    )
)
OF_TEXT = frozenset(
    ("casefold", "endswith", "format", "lower", "replace", "split", "startswith", "strip", "upper")
)
ACTS = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


def find(
    module: Module, removed: set[ast.AST], gone: set[ast.AST]
) -> Iterator[tuple[ast.stmt, str]]:
    """The assignments, with their names, that only what is ``gone`` of ``removed`` code reads."""
    table = module.table
    asked: dict[tuple[Scope, str], None] = {}
    for node in gone:
        scope = table.within[node].lookup(node.id) if isinstance(node, ast.Name) else None
        if scope is not None and scope.is_function and isinstance(node, ast.Name):
            asked[scope, node.id] = None
    for scope, name in asked:
        named = [n for n in table.names_by_id.named(name) if not isinstance(n.ctx, ast.Store)]
        uses = [n for n in named if table.within[n].lookup(name) is scope]
        # Every name that is deleted is one of the uses, and an argument is for the callers.
        others = {Kind.DELETE, Kind.PARAMETER}
        bound = (b for b in scope.bindings[name] if b.kind not in others)
        given = {b.node: _target(b, module) for b in bound}
        if gone.issuperset(uses) and None not in given.values() and not _is_shown(scope, module):
            for statement, target in given.items():
                # What becomes another variable, or goes with what is around it, stays as it is.
                around = (target, statement, *table.ancestors(statement))
                if isinstance(statement, ast.stmt) and removed.isdisjoint(around):
                    yield statement, name


def _is_shown(scope: Scope, module: Module) -> bool:
    """Whether something in a function may read its names without spelling them."""
    table = module.table
    return any(scope in table.within[c].outwards() for c in table.calls_by_name.of(SHOWING))


def _target(binding: Binding, module: Module) -> ast.Name | None:
    """The name in a statement of the function itself that gives nothing else a value."""
    if module.table.scope_of(binding.node).home() is not binding.scope:
        return None
    match binding.node:
        case ast.Assign(targets=[ast.Name() as target]):
            return target
        case ast.AnnAssign(target=ast.Name() as target, value=ast.expr()):
            return target
    return None


def removals(statements: Collection[ast.stmt], module: Module) -> Iterator[ReplaceStatement]:
    """What takes assignments out."""
    for statement in statements:
        value = of_kind(getattr(statement, "value", None), ast.expr)
        alone = (code("{v}", v=value),) if _acts(value, module) else ()
        yield ReplaceStatement(module, statement, alone)


def _acts(value: ast.expr, module: Module) -> bool:
    """Whether making a value may do something besides."""
    nodes = walk(value)
    calls = (n for n in nodes if isinstance(n, ast.Call))
    return any(isinstance(n, ACTS) for n in nodes) or not all(_makes(c, module) for c in calls)


def _makes(call: ast.Call, module: Module) -> bool:
    """Whether a call only makes a value."""
    function, table = call.func, module.table
    if isinstance(function, ast.Name) and table.scope_of(call).lookup(function.id) is None:
        return function.id in BUILTINS
    names = table.qualify(function)
    if not names and isinstance(function, ast.Attribute):
        return function.attr in OF_TEXT
    return bool(names) and all(n in MAKERS or _is_setting(n) for n in names)


def _is_setting(name: str) -> bool:
    """Whether a name is that of a class of torch's whose objects are mere values."""
    last = name.rpartition(".")[2]
    is_class = last[:1].isupper() and not last.endswith("DataParallel")
    return name.startswith("torch.distributed.") and is_class
