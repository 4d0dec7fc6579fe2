"""How a guard stops the program: by an error that nothing in the project may catch, or, where
each may be caught or stop only a thread, by leaving the process.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.migration.guard_place import DEFINITIONS, Nowhere
from fsdp_migrate.planning.context import Study
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.guards import EXIT
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Kind
from fsdp_migrate.syntax.type_expressions import is_type

# What a guard may raise, the usual one first, with the handlers that catch it.
CAUGHT = {
    "NotImplementedError": frozenset(
        {"NotImplementedError", "RuntimeError", "Exception", "BaseException"}
    ),
    "SystemExit": frozenset({"SystemExit", "BaseException"}),
}
SUPPRESSING = frozenset({"suppress", "raises", "assertRaises", "assertRaisesRegex"})
# What runs a function where an error of it stops nothing.
ELSEWHERE = frozenset(
    {
        "Thread",
        "Timer",
        "Process",
        "submit",
        "apply_async",
        "map_async",
        "run_in_executor",
        "to_thread",
        "create_task",
        "ensure_future",
        "call_soon",
        "call_later",
    }
)


# Where a function is kept until something calls it.
KEEPING = (ast.AnnAssign, ast.Assign, ast.Dict, ast.List, ast.Return, ast.Set, ast.Tuple)
LEAVING = frozenset({"exit", "_exit", "quit", "abort"})


@dataclass
class Catching:
    """What in a project ends an error: context managers and functions by name, and whether any
    ``try`` does that may run code of the project."""

    error: str
    contexts: set[str] = field(default_factory=lambda: set(SUPPRESSING))
    functions: set[str] = field(default_factory=set)  # what they are given may run in such a try
    anywhere: bool = False

    @classmethod
    def of(cls, error: str, study: Study) -> Catching:
        found = cls(error)
        for module in study.project.modules:
            for node in module.table.parents:
                if isinstance(node, (ast.Try, ast.TryStar)) and found.ends(node, module):
                    if _only_imports(node.body, module, study):
                        continue
                    found.anywhere = True
                    found.functions.update(_definitions(module, node))
                    if any(isinstance(n, ast.Yield) for s in node.body for n in ast.walk(s)):
                        found.contexts.add(_definition(module, node))
                elif isinstance(node, ast.Return) and not _is_false(node):
                    function = _definition(module, node)
                    if function == "__exit__":
                        method = module.table.scope_of(node).node
                        found.contexts.add(_definition(module, method))
        return found

    def ends(self, node: ast.Try | ast.TryStar, module: Module) -> bool:
        """Whether a ``try`` ends the error where its body raises it."""
        swallowed = any(self.swallows(handler, module) for handler in node.handlers)
        return swallowed or _leaves(node.finalbody)

    def swallows(self, handler: ast.ExceptHandler, module: Module) -> bool:
        """Whether a handler may catch the error and go on."""
        caught = CAUGHT[self.error]
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = {None if k is None else _last_name(k) for k in kinds}
        if not any(n is None or n in caught or _may_be_any(n, module) for n in names):
            return False
        last = handler.body[-1]
        if isinstance(last, ast.Expr) and _last_name(last.value) in LEAVING:
            return False
        if not isinstance(last, ast.Raise):
            return True
        again = "" if last.exc is None else _last_name(last.exc)
        return again not in {"", handler.name, "SystemExit", *caught}


def _only_imports(body: Iterable[ast.stmt], module: Module, study: Study) -> bool:
    """Whether a block imports what is not the project's, and runs nothing else: whatever is run
    without being named, such as a ``forward``, is not run there."""
    for statement in body:
        match statement:
            case ast.Pass() | ast.Assign(targets=[ast.Name()], value=ast.Constant()):
                continue
            case ast.Import(names=aliases):
                named = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(name), level=0):
                named = [name]
            case _:
                return False
        if any(_is_of_project(name, module, study) for name in named):
            return False
    return True


def _is_of_project(name: str, module: Module, study: Study) -> bool:
    """Whether an absolute import may mean a file of the project."""
    known = name.partition(".")[0] in study.project.packages
    return known or study.project.find(name, module) is not None


def _may_be_any(name: str, module: Module) -> bool:
    """Whether a name in ``except`` may stand for any error: ``RETRIABLE = (RuntimeError, OSError)``
    is no class."""
    bindings = module.table.module.bindings.get(name, [])
    is_class = name[:1].isupper() and not name.isupper()
    return not is_class or any(binding.kind is Kind.ASSIGN for binding in bindings)


def _definitions(module: Module, node: ast.AST) -> Iterator[str]:
    """The names of the functions and classes around ``node``, the innermost first."""
    for around in module.table.ancestors(node):
        if isinstance(around, (*DEFINITIONS, ast.ClassDef)):
            yield around.name


def _definition(module: Module, node: ast.AST) -> str:
    """The name of the function or class around ``node``."""
    return next(_definitions(module, node), "")


def _is_false(node: ast.Return) -> bool:
    return node.value is None or (isinstance(node.value, ast.Constant) and not node.value.value)


def stopping_error(module: Module, statement: ast.AST, study: Study) -> str:
    """The error that a guard raises at a place so that the program stops: the first one that
    nothing in the project may catch, or else ``EXIT``, which is none."""
    for catching in study.cache(_catching):
        try:
            _check(module, statement, study, catching)
        except Nowhere:
            continue
        return catching.error
    return EXIT


def _catching(study: Study) -> list[Catching]:
    return [Catching.of(error, study) for error in CAUGHT]


def _check(module: Module, statement: ast.AST, study: Study, catching: Catching) -> None:
    """Refuse a place from which an error does not stop the program, in whatever calls lead there.

    Calls are told by the name of the function, whoever's it is; of methods that are called without
    being named, and of functions that are kept, no ``try`` of the project may end errors.
    """
    asked: set[str] = set()
    places: list[tuple[Module, ast.AST]] = [(module, statement)]
    while places:
        where, node = places.pop()
        _check_handed_on(where, node, catching)
        function = _check_caught_here(where, node, catching)
        name = getattr(function, "name", "")
        if function is not None and name == "__init__":
            name = getattr(where.table.parents[function], "name", name)
        elif name == "__del__":
            raise Nowhere("what __del__ raises is ignored")
        elif (name == "forward" or name.startswith("__")) and catching.anywhere:
            raise Nowhere("what it raises may be caught")
        if isinstance(node, ast.expr) and isinstance(where.table.parents[node], ast.ClassDef):
            name = _definition(where, node)  # a subclass is made where it is named
        if name and name not in asked:
            asked.add(name)
            known = study.cache(_mentions_by_name)
            if name not in known:
                known[name] = _mentions(name, study)
            mentions = known[name]
            if mentions is None:
                raise Nowhere("what it raises stops only a thread or a process")
            places += mentions


def _check_handed_on(module: Module, node: ast.AST, catching: Catching) -> None:
    """Refuse a function that is given to one that ends errors, or kept where some do."""
    if not isinstance(node, (ast.Name, ast.Attribute)) or not isinstance(node.ctx, ast.Load):
        return
    parent = module.table.parents[node]
    if isinstance(parent, KEEPING) and catching.anywhere:
        raise Nowhere("what it raises may be caught")
    is_called = isinstance(parent, ast.Call) and parent.func is node
    child: ast.AST = node
    for above in module.table.ancestors(node):
        if isinstance(above, ast.stmt):
            return
        is_argument = isinstance(above, ast.Call) and child is not above.func
        whole = not is_called and (child is node or isinstance(child, ast.keyword))
        is_given = is_argument and (whole or isinstance(child, ast.Lambda))
        if is_given and _last_name(above) in catching.functions:
            raise Nowhere("what it raises is caught")
        child = above


def _check_caught_here(module: Module, node: ast.AST, catching: Catching) -> ast.AST | None:
    """The function around ``node``, which an error there leaves."""
    child = node
    for parent in module.table.ancestors(node):
        if isinstance(parent, DEFINITIONS):
            ending = catching.functions | catching.contexts
            if any(_last_name(decorator) in ending for decorator in parent.decorator_list):
                raise Nowhere("what it raises is caught")
            return parent
        if isinstance(parent, (ast.Try, ast.TryStar)) and child not in parent.finalbody:
            inside = child in parent.body
            swallowed = (catching.swallows(handler, module) for handler in parent.handlers)
            if (inside and any(swallowed)) or _leaves(parent.finalbody):
                raise Nowhere("what it raises is caught")
        if isinstance(parent, (ast.With, ast.AsyncWith)) and child in parent.body:
            for item in parent.items:
                if _last_name(item.context_expr) in catching.contexts:
                    raise Nowhere("what it raises is caught")
        child = parent
    return None


Mentions = list[tuple[Module, ast.AST]] | None


def _mentions_by_name(study: Study) -> dict[str, Mentions]:
    """The mentions of functions that have been looked for: the same ones lead to many sites."""
    return {}


def _mentions(name: str, study: Study) -> Mentions:
    """Where a function is called, or handed on; None if that is to what runs it in a thread."""
    mentions: list[tuple[Module, ast.AST]] = []
    for module in study.project.modules:
        if not module.mentions(name):
            continue
        table = module.table
        found: list[ast.expr] = [*table.names_by_id.named(name)]
        found += table.attributes_by_name.named(name)
        for mention in found:
            if study.external(mention, module):
                continue  # torch.save is no save of the project's
            if is_type(mention, table) or _is_asked_for(mention, table):
                continue
            parent = table.parents[mention]
            given = table.parents[parent] if isinstance(parent, ast.keyword) else parent
            handed_on = isinstance(given, ast.Call) and given.func is not mention
            if handed_on and _last_name(given) in ELSEWHERE:
                return None
            mentions.append((module, mention))
    return mentions


def _is_asked_for(mention: ast.expr, table: NameTable) -> bool:
    """Whether ``isinstance`` asks for a class, which makes no object of it."""
    child: ast.AST = mention
    parent = table.parents[mention]
    if isinstance(parent, ast.Tuple):
        child, parent = parent, table.parents[parent]
    match parent:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, asked]):
            return asked is child
    return False


def _leaves(block: Iterable[ast.stmt]) -> bool:
    """Whether a ``finally`` block ends an error by leaving."""
    return any(
        isinstance(n, (ast.Return, ast.Break, ast.Continue)) for s in block for n in ast.walk(s)
    )


def _last_name(node: ast.AST) -> str:
    return last_name(node.func if isinstance(node, ast.Call) else node)
