"""Text that a program executes in its own names: ``exec(open("configurator.py").read())``.

Where that is a file of the project's, its text is read: what it names, and what it may set. Whoever
takes a name of a module for what it is assigned asks :func:`setter` first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from fsdp_migrate.analysis.module import Library, Module
from fsdp_migrate.syntax import evaluated_text
from fsdp_migrate.syntax.expressions import last_name
from fsdp_migrate.syntax.trees import DEFINITIONS, walk

EVALUATING = frozenset({"exec", "eval"})
LITERAL = frozenset({"literal_eval", "int", "float", "bool", "str"})


class Files(Protocol):
    """The files of a project, as far as they were read."""

    library: Library

    @property
    def read(self) -> list[Module]: ...


def tree_of(call: ast.Call, module: Module, project: Files) -> ast.Module | None:
    """The file that ``exec`` is given the text of, if that is one of the project's."""
    name = _file_name(call.args[0]) if call.args else None
    if name is None or Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    top = project.library.top
    known = {m.path: m for m in project.read}
    for directory in module.path.parents:
        path = directory / name
        if path in known:
            return known[path].source.tree
        if path in project.library.paths:
            return _parsed(project.library.read(path))
        if directory == top:
            break
    return None


def executes_files(module: Module) -> Iterator[ast.Call]:
    """The calls of a file that execute the text of another."""
    return filter(_executes_a_file, module.table.calls_by_name.of({"exec"}))


def may_name(name: str, call: ast.Call, module: Module, project: Files) -> bool:
    """Whether what ``exec`` is given may use a name of the file that it stands in. A file that the
    executed one is told to execute in turn may be any of the project's."""
    tree = tree_of(call, module, project)
    if tree is None:
        return True
    evaluates = False
    for node in walk(tree):
        match node:
            case ast.Name(id=str(word)) if word == name:
                return True
            case ast.Call(func=ast.Name(id=function)) if function in EVALUATING:
                evaluates = True
                if not _executes_a_file(node):
                    return True  # some other text
            case ast.Call(func=ast.Name(id="globals" | "locals" | "vars")) if _asks(node, tree):
                return True
    return evaluates and any(_uses(name, each) for each in _others(name, module, project))


def setter(
    name: str, given: ast.AST, module: Module, project: Files, used: ast.AST | None = None
) -> ast.Call | None:
    """The call that may give a name of a module something else than ``given`` before it is used:
    it executes text, or changes ``globals()``. Functions and classes are defined anew by text in
    sight alone.

    Args:
        given: the expression, or the statement, that the name has its value from.
        used: where it is used, if that is in the flow of the module itself.
    """
    top = module.table.module
    is_plain, is_defined = _is_plain(given), isinstance(given, DEFINITIONS)
    for call in module.setting_names:
        if is_defined and not (_is_in_sight(call) or tree_of(call, module, project)):
            continue
        is_passed = module.table.scope_of(call) is top and (
            call.lineno < getattr(given, "lineno", 0)
            or (used is not None and getattr(used, "lineno", 0) < call.lineno)
        )
        if is_passed or not evaluated_text.may_set(name, call):
            continue
        if may_set(name, call, module, project, is_plain=is_plain):
            return call
    return None


def _is_in_sight(call: ast.Call) -> bool:
    return bool(call.args) and isinstance(call.args[0], ast.Constant)


def _is_plain(given: ast.AST) -> bool:
    """Whether something is a number, a text or a flag, as settings are."""
    return isinstance(given.operand if isinstance(given, ast.UnaryOp) else given, ast.Constant)


def may_set(
    name: str, call: ast.Call, module: Module, project: Files, *, is_plain: bool = True
) -> bool:
    """Whether an executed file may set a name: one that it has, or any by what it executes.

    Args:
        is_plain: what the name has is a number, a text or a flag. The command line gives no other
            a value that is read as a literal, if its type is to stay the same.
    """
    tree = tree_of(call, module, project)
    if tree is None:
        return True
    executes = False
    for node in walk(tree):
        match node:
            case ast.Name(id=word) if word == name:
                return True
            case ast.alias() | ast.FunctionDef() | ast.ClassDef() if _binds(node, name):
                return True
            case ast.Name(id="globals" | "locals" | "vars" | "exec" | "eval") if is_plain:
                return True
            case ast.Call(func=ast.Name(id=function)) if function in EVALUATING:
                if not _executes_a_file(node):
                    return True
                executes = True
    if _sets_any(tree):
        return True
    return executes and any(_sets(name, each) for each in _others(name, module, project))


def _sets_any(tree: ast.Module) -> bool:
    """Whether a file sets names by keys, to values that need not be literals of the same type."""
    nodes = list(walk(tree))
    parents = {child: node for node in nodes for child in ast.iter_child_nodes(node)}
    asked = [parents[n] for n in nodes if isinstance(n, ast.Call) and _is_of_names(n)]
    uses = [each for each in asked if not isinstance(each, ast.Compare)]
    said = [ast.unparse(node) for node in nodes if isinstance(node, ast.Assert)]
    reads = any(isinstance(n, ast.Call) and last_name(n.func) in LITERAL for n in nodes)
    keeps_types = reads and any("type(" in each and "globals()[" in each for each in said)
    return bool(uses) and not (keeps_types and all(isinstance(n, ast.Subscript) for n in uses))


def _is_of_names(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id in {"globals", "locals", "vars"}


def _sets(name: str, tree: ast.Module) -> bool:
    """Whether a file binds a name of its own, and not only of its functions."""
    stack: list[ast.AST] = [*tree.body]
    while stack:
        node = stack.pop()
        match node:
            case ast.Name(id=word, ctx=ast.Store()) if word == name:
                return True
            case ast.alias() | ast.FunctionDef() | ast.ClassDef() if _binds(node, name):
                return True
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            stack += ast.iter_child_nodes(node)
    return False


def _binds(node: ast.alias | ast.FunctionDef | ast.ClassDef, name: str) -> bool:
    if isinstance(node, ast.alias):
        return (node.asname or node.name.partition(".")[0]) in {name, "*"}
    return node.name == name


def _file_name(text: ast.expr) -> str | None:
    """The file whose text an expression reads, if it is named there."""
    match _compiled(text):
        case ast.Call(
            func=ast.Attribute(
                value=ast.Call(args=[ast.Constant(value=str(name)), *_]) as opened,
                attr="read" | "read_text",
            )
        ):
            return name if _opens(opened) else None
    return None


def _compiled(text: ast.expr) -> ast.expr:
    match text:
        case ast.Call(func=ast.Name(id="compile"), args=[inner, *_]):
            return inner
    return text


def _opens(call: ast.Call) -> bool:
    return ast.unparse(call.func) in {"open", "io.open", "Path", "pathlib.Path"}


def _executes_a_file(call: ast.Call) -> bool:
    """Whether the text of some file is executed."""
    match [_compiled(each) for each in call.args[:1]]:
        case [ast.Call(func=ast.Attribute(value=ast.Call() as opened, attr="read" | "read_text"))]:
            return _opens(opened)
    return False


def _asks(call: ast.Call, tree: ast.Module) -> bool:
    """Whether the names of a file are asked for a value: not whether one is there, of which type
    it is, or for it to be another."""
    parents = {child: node for node in walk(tree) for child in ast.iter_child_nodes(node)}
    match parents[call]:
        case ast.Compare(ops=[ast.In() | ast.NotIn()]):
            return False
        case ast.Subscript(ctx=ast.Store()):
            return False
        case ast.Subscript() as item:
            return not (
                isinstance(above := parents[item], ast.Call) and ast.unparse(above.func) == "type"
            )
        case ast.Attribute(attr="update"):
            return False
    return True


def _others(name: str, module: Module, project: Files) -> Iterator[ast.Module]:
    """The other files of a project that have a word."""
    word = re.compile(rb"\b%s\b" % re.escape(name.encode()))
    for other in project.read:
        if other is not module and other.mentions(name):
            yield other.source.tree
    for path in sorted(project.library.paths):
        data = project.library.read(path)
        tree = _parsed(data) if word.search(data) else None
        if tree is not None:
            yield tree


def _uses(name: str, tree: ast.Module) -> bool:
    """Whether a file uses a name that it does not bind."""
    bound = False
    used = False
    for node in walk(tree):
        match node:
            case ast.Name(id=word, ctx=context) if word == name:
                used |= isinstance(context, ast.Load)
                bound |= not isinstance(context, ast.Load)
            case ast.arg(arg=word):
                bound |= word == name
            case ast.alias() | ast.FunctionDef() | ast.ClassDef():
                bound |= _binds(node, name)
    return used and not bound


def _parsed(data: bytes) -> ast.Module | None:
    try:
        return ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
