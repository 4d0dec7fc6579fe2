"""Files that a program executes in its own names: ``exec(open("configurator.py").read())``.

Where the file is one of the project's, its text is read: what it names, and what it may set.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.project import Project
from fsdp_migrate.syntax.trees import walk

EVALUATING = frozenset({"exec", "eval"})


def tree_of(call: ast.Call, module: Module, project: Project) -> ast.Module | None:
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


def may_name(name: str, call: ast.Call, module: Module, project: Project) -> bool:
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


def may_set(name: str, call: ast.Call, module: Module, project: Project) -> bool:
    """Whether an executed file may set a name: one that it has, or any by what it executes."""
    tree = tree_of(call, module, project)
    if tree is None:
        return True
    return any(
        (isinstance(node, ast.Name) and node.id in {name, "globals", "locals", "vars", *EVALUATING})
        or (isinstance(node, (ast.alias, ast.FunctionDef, ast.ClassDef)) and _binds(node, name))
        for node in walk(tree)
    )


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


def _others(name: str, module: Module, project: Project) -> Iterator[ast.Module]:
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
