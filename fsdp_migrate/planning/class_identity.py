"""Whether a program tells the members of a class from those of another class of the same name.

Where two files need a class of the support library, and no import of one support file works in
both, each has its own. That is all the same where values are only handed on to what reads their
names and fields, and makes a difference where something compares them, or looks something up by
them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.fsdp1 import api as fsdp1
from fsdp_migrate.fsdp1.references import enclosing_function
from fsdp_migrate.planning.edits import Edit, ReplaceExpression, ReplaceStatement, carried
from fsdp_migrate.planning.support_library import is_ours
from fsdp_migrate.syntax.trees import last_part

Mention = ast.Name | ast.Attribute


def is_told_apart(name: str, project: Project, edits: Sequence[Edit]) -> bool:
    """Whether the code that stays may compare members of a class, or ask whether one is of it.

    Each mention is followed by the names that take it: of parameters, keywords, variables and
    attributes, whatever has them. What goes any other way may be compared.
    """
    kept = carried(edits)
    replacing = (ReplaceExpression, ReplaceStatement)
    replaced = {edit.node for edit in edits if isinstance(edit, replacing)}

    def stays(mention: Mention, module: Module) -> bool:
        around = {mention, *module.table.ancestors(mention)}
        return replaced.isdisjoint(around) or not kept.isdisjoint(around)

    known: set[str] = set()
    unseen = {name}
    while unseen:
        current = unseen.pop()
        known.add(current)
        for module in _mentioning(current, project):
            if any(string.value == current for string in module.table.strings):
                return True
            for mention in _mentions(current, module):
                if not stays(mention, module):
                    continue
                takers = _takers(mention, module, is_class=current == name)
                if takers is None:
                    return True
                unseen |= takers - known
    return False


def _mentioning(name: str, project: Project) -> Iterator[Module]:
    word = re.compile(rb"\b%s\b" % name.encode())
    yield from (m for m in project.modules if m.mentions(name) and not is_ours(m))
    for path in sorted(project.library.paths):
        module = project.load(path) if word.search(project.library.read(path)) else None
        if module is not None:
            yield module


def _mentions(name: str, module: Module) -> Iterator[Mention]:
    """Where a value is read by a name, which an import may have changed, or is a field by it."""
    table = module.table
    imported = {b.name for b in table.imports if b.qualified.rpartition(".")[2] == name}
    names = table.names_by_id.of({name, *imported})
    mentions: list[Mention] = [*names, *table.attributes_by_name.named(name)]
    for mention in mentions:
        if isinstance(mention.ctx, ast.Load) or _is_field(table.parents[mention], module):
            yield mention


def _takers(mention: Mention, module: Module, *, is_class: bool) -> set[str] | None:
    """The names that take a value where it is mentioned; None if it may be compared there."""
    parents = module.table.parents
    node: ast.AST = mention
    if _is_annotation(node, module):
        return set()
    if is_class:
        node = parents[mention]
        if not isinstance(node, (ast.Attribute, ast.Call)) or mention not in _heads(node):
            return None
    while True:
        below, node = node, parents[node]
        match node:
            case ast.BoolOp() | ast.IfExp() if below is not getattr(node, "test", None):
                continue
            case ast.If() | ast.IfExp() | ast.Expr():
                return set()
            case ast.Attribute(attr=field) if not field.startswith("__"):
                return set()  # its name, or one of its fields
            case ast.Compare(comparators=[ast.Constant()]) if below is node.left:
                return set()
            case ast.keyword(arg=str(name)):
                return set() if _is_fsdp1(parents[node], module) else {name}
            case ast.Call(func=function) if below is function:
                continue  # what it gives back
            case ast.Return():
                return _asked(enclosing_function(module, node), module)
            case ast.arguments() if isinstance(below, ast.expr):
                return {_parameter(below, node)}
            case ast.AnnAssign(target=target) if not _is_field(node, module):
                return _targets([target])
            case ast.Assign(targets=targets):
                return _targets(targets)
        return None


def _is_fsdp1(call: ast.AST, module: Module) -> bool:
    """Whether FSDP1 is called, in the place of which the support file's own function is."""
    names = module.table.qualify(call.func) if isinstance(call, ast.Call) else frozenset()
    return any(fsdp1.canonical(name) == fsdp1.FSDP for name in names)


def _asked(function: ast.AST, module: Module) -> set[str] | None:
    """The name of a function that its own file calls, by which what it returns is followed."""
    if not isinstance(function, ast.FunctionDef):
        return None
    name, table = function.name, module.table
    called = table.names_by_id.named(name) or table.attributes_by_name.named(name)
    return {name} if called else None


def _heads(node: ast.Attribute | ast.Call) -> tuple[ast.expr]:
    return (node.value if isinstance(node, ast.Attribute) else node.func,)


def _is_annotation(node: ast.AST, module: Module) -> bool:
    """Whether it stands in the annotation of a parameter, a result or a variable."""
    for holder in module.table.ancestors(node):
        if not isinstance(holder, ast.expr):
            parts = (getattr(holder, name, None) for name in ("annotation", "returns"))
            return node in parts and not _is_field(holder, module)
        node = holder
    return False


def _is_field(statement: ast.AST, module: Module) -> bool:
    """Whether it declares what objects of a class have, by which they may be compared."""
    in_class = isinstance(module.table.parents.get(statement), ast.ClassDef)
    return in_class and isinstance(statement, ast.AnnAssign)


def _parameter(default: ast.expr, arguments: ast.arguments) -> str:
    """The parameter that a default is of."""
    listed = [*arguments.posonlyargs, *arguments.args][-len(arguments.defaults) :]
    defaults = [*arguments.defaults, *arguments.kw_defaults]
    return [*listed, *arguments.kwonlyargs][defaults.index(default)].arg


def _targets(targets: Sequence[ast.expr]) -> set[str] | None:
    names = {last_part(target) for target in targets if isinstance(target, Mention)}
    return names if len(names) == len(targets) else None
