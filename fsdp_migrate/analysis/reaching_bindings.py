"""Which bindings of a name reach a use of it.

Most names are bound once, and nothing is looked at. Of the others the definitions count that reach
the use: those of the flow of its own scope, or, in a function that runs later, those that can be
there when it runs. What the bindings lead to outside the module is asked of
:meth:`fsdp_migrate.analysis.name_resolution.NameResolution.meaning`.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.syntax.name_table import NameTable
from fsdp_migrate.syntax.scopes import Binding, Kind, Scope, differ
from fsdp_migrate.syntax.trees import FUNCTIONS, LOOPS, position, walk

if TYPE_CHECKING:
    from fsdp_migrate.analysis.module import Module


def bindings(name: ast.Name, module: Module) -> Sequence[Binding]:
    """The bindings that may have given a name the value that is used."""
    here = module.table.scope_of(name)
    scope = here.lookup(name.id)
    if scope is None:
        return ()
    every = scope.bindings[name.id]
    if not differ(every):
        return every
    home = here.home()
    if scope is home or name.id in home.redirected:
        flow = module.flow(home)
        found = flow.reaching.get(name, flow.deleted.get(name))
        if found is not None:
            nodes = {definition.node for definition in found}
            nodes.update(b.node for b in every if _is_stored_elsewhere(b, home, module.table))
            return [b for b in every if b.node in nodes]
        if scope is home:
            return at_end(every, scope, module)
    return when_it_runs(name, every, scope, module)


def uses(binding: Binding, module: Module) -> list[ast.Name]:
    """The places that read or delete a name and may get what an import gives it.

    Two imports of the same thing are one: what one gives is got from the other as well.
    """
    within = module.table.within
    found = [
        name
        for name in module.table.names_by_id.named(binding.name)
        if not isinstance(name.ctx, ast.Store) and within[name].lookup(name.id) is binding.scope
    ]
    short = fsdp1.canonical(binding.qualified) or binding.qualified
    every = binding.scope.bindings[binding.name]
    if all(b is binding or fsdp1.is_same(b.qualified, short) for b in every):
        return found
    return [name for name in found if binding in bindings(name, module)]


def is_attribute(binding: Binding, module: Module) -> bool:
    """Whether an import in a class body may be read as an attribute of the class: ``self.FSDP``."""
    read = module.table.attributes_by_name.named(binding.name) if binding.scope.is_class else ()
    return any(isinstance(node.ctx, ast.Load) for node in read)


def at_end(every: Sequence[Binding], scope: Scope, module: Module) -> Sequence[Binding]:
    """Those of a name's bindings that can be there when all statements of its scope have run:
    what another module imports."""
    if not differ(every):
        return every
    final = {d.node for d in module.flow(scope).final.get(every[0].name, ())}
    return [b for b in every if b.node in final or _is_stored_elsewhere(b, scope, module.table)]


def when_it_runs(
    name: ast.Name, every: Sequence[Binding], scope: Scope, module: Module
) -> list[Binding]:
    """The bindings of a name that a function inside of ``scope`` may find when it runs.

    Such a binding is there where the function is defined, or is made later; and it is still there
    when the scope ends, or where something calls a function of the scope.
    """
    table, flow = module.table, module.flow(scope)
    definition = _definition_in(scope, name, table)
    there = {d.node for d in flow.at.get((definition, name.id), ())}
    meets = {d.node for d in flow.final.get(name.id, ())}
    for (node, watched), definitions in flow.at.items():
        asked = watched == name.id and isinstance(node, ast.Call)
        if asked and _is_later(node, definition) and _uses_function_of(scope, node):
            meets.update(d.node for d in definitions)
    return [
        b
        for b in every
        if _is_stored_elsewhere(b, scope, table)
        or (b.node in meets and (b.node in there or _may_follow(b.node, definition, scope, table)))
    ]


def _is_stored_elsewhere(binding: Binding, scope: Scope, table: NameTable) -> bool:
    """Whether a function binds the name in a scope around it, by ``global`` or ``nonlocal``."""
    return binding.kind is not Kind.PARAMETER and table.scope_of(binding.node).home() is not scope


def _definition_in(scope: Scope, node: ast.AST, table: NameTable) -> ast.AST:
    """The function, lambda or class directly in ``scope`` that a node is part of."""
    found = node
    for parent in table.ancestors(node):
        if parent is scope.node:
            break
        if isinstance(parent, (*FUNCTIONS, ast.ClassDef)):
            found = parent
    return found


def _uses_function_of(scope: Scope, call: ast.AST) -> bool:
    """Whether a call may run a function or a class that is defined in ``scope``."""
    return any(
        binding.kind in (Kind.FUNCTION, Kind.CLASS)
        for node in walk(call)
        if isinstance(node, ast.Name)
        for binding in scope.bindings.get(node.id, ())
    )


def _is_later(node: ast.AST, than: ast.AST) -> bool:
    return position(node) > position(than)


def _may_follow(node: ast.AST, first: ast.AST, scope: Scope, table: NameTable) -> bool:
    """Whether a statement may run after another one of the same scope: it stands behind it, and
    not in another branch; or a loop is around both."""
    above, others = (_path(each, scope, table) for each in (node, first))
    shared = [a for a, b in zip(above, others, strict=False) if a is b]
    if any(isinstance(each, LOOPS) for each in shared):
        return True
    return _is_later(node, first) and not _are_apart(above, others, len(shared))


def _path(node: ast.AST, scope: Scope, table: NameTable) -> list[ast.AST]:
    """The nodes from below that of a scope down to ``node``."""
    around = itertools.takewhile(lambda parent: parent is not scope.node, table.ancestors(node))
    return [node, *around][::-1]


def _are_apart(first: list[ast.AST], second: list[ast.AST], split: int) -> bool:
    """Whether two paths, which part after ``split`` nodes, lead into branches of which one runs."""
    if not split or split >= min(len(first), len(second)):
        return False
    parent, one, other = first[split - 1], first[split], second[split]
    match parent:
        case ast.If(body=body, orelse=orelse):
            return (one in body and other in orelse) or (one in orelse and other in body)
        case ast.Match():
            return True  # two of its cases
        case (
            ast.Try(handlers=handlers, orelse=orelse)
            | ast.TryStar(handlers=handlers, orelse=orelse)
        ):
            either = [*handlers, *orelse]
            both = one in either and other in either
            return both and (one in handlers or other in handlers)
    return False


def is_placeholder(binding: Binding) -> bool:
    """Whether a binding stands for something that is missing: nothing can be made with it.

    ``FSDP = None``, a flag, ``object``, and classes and functions that are empty or only raise.
    """
    match binding.node:
        case ast.Delete():
            return True
        case ast.ClassDef(bases=[] | [ast.Name(id="object")], decorator_list=[], body=body):
            return all(map(_is_empty, body))
        case ast.FunctionDef(body=body) as node:
            return _is_empty(node) and not all(map(_is_nothing, body))
    return binding.kind is Kind.ASSIGN and _is_missing(_unpacked(binding))


def _unpacked(binding: Binding) -> ast.expr | None:
    value = binding.value
    for index in binding.unpack:
        size = len(value.elts) if isinstance(value, (ast.Tuple, ast.List)) else 0
        if not isinstance(value, (ast.Tuple, ast.List)) or not -size <= index < size:
            return value if isinstance(value, ast.Constant) else None
        value = value.elts[index]
    return value


def _is_missing(value: ast.expr | None) -> bool:
    match value:
        case ast.Constant() | ast.Name(id="object") | ast.Tuple(elts=[]) | ast.List(elts=[]):
            return True
    return False


def _is_empty(node: ast.stmt) -> bool:
    """Whether a statement of a class does nothing, or is a function that does nothing or raises."""
    if isinstance(node, ast.FunctionDef):
        *first, last = node.body
        return all(map(_is_nothing, first)) and (isinstance(last, ast.Raise) or _is_nothing(last))
    return _is_nothing(node)


def _is_nothing(node: ast.stmt) -> bool:
    return isinstance(node, ast.Pass) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def in_words(binding: Binding) -> str:
    """What a definition of the project's own makes of its name, for a sentence."""
    match binding.kind:
        case Kind.CLASS:
            return "a class of the project's own"
        case Kind.FUNCTION:
            return "a function of the project's own"
        case Kind.PARAMETER:
            return "what callers give for it"
        case Kind.ASSIGN if binding.value is not None and not binding.unpack:
            text = ast.unparse(binding.value)
            return text if len(text) < 50 else "what is assigned to it"
    return "what else is assigned to it"
