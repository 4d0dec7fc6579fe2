"""Whether rewritten files bind every name before they read it, told by other means than the tool's.

Two means: the text, read with ``ast`` alone, and a world in which the files are really
imported, while whatever they import from outside of the project is a stand-in.
"""

from __future__ import annotations

import ast
import builtins
import posixpath
from collections.abc import Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

from tests.helpers import standins

Position = tuple[int, int]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
ANNOTATIONS = ("annotation", "returns")


# -- the text ---------------------------------------------------------------------------------


def early(text: str) -> set[tuple[str, str]]:
    """Names that are read above all that binds them, each with the function that reads it.

    Only of what imports bind; what is imported for annotations alone is not bound.
    """
    tree = ast.parse(text)
    postponed = any(
        isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
    )
    bound = _bound(tree.body)
    found = {
        ("", name) for name, where in _reads(tree.body, postponed) if where < _first(bound, name)
    }
    functions = {node.name: node for node in tree.body if isinstance(node, Definition)}
    deferred = {
        name: {read for read, _ in _deferred(node, postponed)} for name, node in functions.items()
    }
    first = dict.fromkeys(functions, NEVER)
    for read, where in _reads(tree.body, postponed):
        if read in first:
            first[read] = min(first[read], where)
    for name, definition in functions.items():
        if first[name] != NEVER:
            for called in _closure(definition, deferred):
                late = {read for read in deferred[called] if first[name] < _first(bound, read)}
                found |= {(called, read) for read in late}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = _bound(node.body)
            given = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
            declared = {
                n
                for s in ast.walk(node)
                if isinstance(s, ast.Global | ast.Nonlocal)
                for n in s.names
            }
            for read, where in _reads(node.body, postponed):
                if read in own and read not in given | declared and where < _first(own, read):
                    found.add((node.name, read))
    return found


NEVER = (10**9, 0)


def _first(bound: Mapping[str, Position], name: str) -> Position:
    return bound.get(name, (0, 0))  # what is not imported here is another test's


def _bound(body: list[ast.stmt]) -> dict[str, Position]:
    """Where names are bound first that some import of these statements binds."""
    found: dict[str, Position] = {}
    imported: set[str] = set()

    def note(name: str, node: ast.AST, at: Position | None = None) -> None:
        where = at or (node.lineno, node.col_offset)  # type: ignore[attr-defined]  # all have them
        found[name] = min(where, found.get(name, NEVER))

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for each in node.body:
                for alias in getattr(each, "names", ()):
                    if isinstance(alias, ast.alias):
                        imported.add(alias.asname or alias.name.split(".")[0])
                        note(alias.asname or alias.name.split(".")[0], each, NEVER)
            for each in node.orelse:
                visit(each)
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.asname or alias.name.split(".")[0]
                imported.add(name)
                note(name, node)
        elif isinstance(node, Definition):
            note(node.name, node)
            return
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            note(node.id, node)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            note(node.name, node)
        if not isinstance(node, ast.Lambda):
            for child in ast.iter_child_nodes(node):
                visit(child)

    for statement in body:
        visit(statement)
    return {name: where for name, where in found.items() if name in imported}


def _reads(body: list[ast.stmt], postponed: bool) -> Iterator[tuple[str, Position]]:
    """The names that statements read themselves, not in the functions that they define."""
    for statement in body:
        yield from _read(statement, postponed)


def _read(node: ast.AST, postponed: bool) -> Iterator[tuple[str, Position]]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id, (node.lineno, node.col_offset)
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        return
    for name, value in ast.iter_fields(node):
        if postponed and name in ANNOTATIONS:
            continue
        if name == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _read(child, postponed)


def _deferred(node: ast.AST, postponed: bool) -> Iterator[tuple[str, Position]]:
    """The names that the functions in a definition read when they run, and do not bind."""
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            own = {a.arg for a in ast.walk(each.args) if isinstance(a, ast.arg)}
            for n in ast.walk(each):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
                    own.add(n.id)
                own |= {
                    a.asname or a.name.split(".")[0]
                    for a in getattr(n, "names", ())
                    if isinstance(a, ast.alias)
                }
            yield from (r for r in _reads(each.body, postponed) if r[0] not in own)


def _closure(start: ast.AST, deferred: Mapping[str, set[str]]) -> list[str]:
    """A function and those that it mentions, and so on."""
    assert isinstance(start, Definition)
    found = [start.name]
    for name in found:  # which grows meanwhile
        found += sorted((deferred[name] & deferred.keys()) - {*found})
    return found


# -- the world --------------------------------------------------------------------------------


class World:
    """A project whose modules are run when they are imported; all others are stand-ins."""

    def __init__(self, files: Mapping[str, str], others: Collection[str] = ()) -> None:
        self.files = files
        every = (*files, *others)
        self.packages = {posixpath.dirname(p) for p in every if p.endswith("__init__.py")}
        self.loaded: dict[str, ModuleType] = {}
        self.directories = {d for path in files for d in _above(posixpath.dirname(path))}

    def load(self, path: str, name: str = "loaded") -> ModuleType:
        """Run the file at ``path``, or of the package at it, unless that was done."""
        if path in self.loaded:
            return self.loaded[path]
        module = self.loaded[path] = ModuleType(name)
        file = path if path.endswith(".py") else posixpath.join(path, "__init__.py")
        module.__dict__["__file__"] = file
        if file in self.files:
            module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self.bring_in}
            code = compile(self.files[file], file, "exec", dont_inherit=True)
            with standins.usual_depth():
                exec(code, module.__dict__)
        else:  # a directory that is no package, or one whose file is not among these
            module.__dict__["__getattr__"] = _stand_in
        return module

    def bring_in(
        self,
        name: str,
        context: Mapping[str, Any] | None = None,
        _: object = None,
        wanted: Collection[str] | None = None,
        level: int = 0,
    ) -> Any:
        """What ``__import__`` does."""
        if name == "__future__":
            return __import__(name)
        here = posixpath.dirname((context or {}).get("__file__", ""))
        parts = name.split(".") if name else []
        found = self.find(here, parts, level)
        if found is None:
            return standins.anything()
        modules = []
        for at in found:
            try:
                modules.append(self.load(at))
            except BaseException:
                self.loaded.pop(at, None)
                raise
        for module, part, child in zip(
            modules, parts[-len(modules) + 1 :], modules[1:], strict=False
        ):
            setattr(module, part, child)
        if not wanted:
            return modules[0]
        last, at = modules[-1], found[-1]
        for each in wanted:
            if not hasattr(last, each) and not at.endswith(".py"):
                inner = self.at(posixpath.join(at, each))
                if inner is not None:
                    setattr(last, each, self.load(inner))
        return last

    def find(self, here: str, parts: list[str], level: int) -> list[str] | None:
        """The places of a dotted name's modules; None when the project has no such."""
        if level:
            for _ in range(level - 1):
                here = posixpath.dirname(here)
            starts = [here]
        else:
            starts = [d for d in _above(here) if d not in self.packages]
        for start in starts:
            places = [self.at(posixpath.join(start, *parts[: i + 1])) for i in range(len(parts))]
            known = [place for place in places if place is not None]
            if len(known) == len(parts):
                return [start, *known] if level else known
        return None

    def at(self, path: str) -> str | None:
        """The module at a path without its ending: a file's own path, or a directory's."""
        if f"{path}.py" in self.files:
            return f"{path}.py"
        return path if path in self.directories else None


def _above(directory: str) -> list[str]:
    found = [directory]
    while directory:
        directory = posixpath.dirname(directory)
        found.append(directory)
    return found


def _stand_in(name: str) -> Any:
    if name.startswith("__") and name != "__version__":
        raise AttributeError(name)
    return standins.anything()


def failure(
    files: Mapping[str, str], path: str, others: Collection[str] = ()
) -> BaseException | None:
    """What importing one file of a project gives, in which there are ``others`` too."""
    world = World(files, others)
    packages = [d for d in _above(posixpath.dirname(path)) if f"{d}/__init__.py" in files]
    try:
        for each in (*reversed(packages), path):
            world.load(each)
    except BaseException as error:  # whatever it is
        return error
    return None


OF_NAMES = (NameError, ImportError)


def complaints(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """What is wrong with the names of rewritten files that was not so before.

    Only these are really imported; the rest of a project is stand-ins like all others.
    """
    found: list[str] = []
    others = tuple(after)
    after = {p: t for p, t in after.items() if p.endswith(".py") and before.get(p) != t}
    before = {p: t for p, t in before.items() if p in after}
    for path, text in after.items():
        known = early(before.get(path, ""))
        fresh = {(where, name) for where, name in early(text) if (where, name) not in known}
        found += [f"{path}: {name} is read too early in {where or 'it'}" for where, name in fresh]
        wrong = failure(after, path, others)
        if isinstance(wrong, OF_NAMES):
            was = failure(before, path, others) if path in before else None
            if not isinstance(was, OF_NAMES):
                found.append(f"{path}: {type(wrong).__name__}: {wrong}")
        found += _absent_support(after, path, others)
    return found


def _absent_support(after: Mapping[str, str], path: str, others: Collection[str]) -> Iterator[str]:
    """The imports of a support module that lead nowhere."""
    world = World(after, others)
    for node in ast.walk(ast.parse(after[path])):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = (node.module or "").split(".")
        if not parts[-1].startswith("fsdp2_support"):
            continue
        places = world.find(posixpath.dirname(path), parts, node.level)
        if places is None:
            yield f"{path}: no module {node.module}"
            continue
        tree = ast.parse(after[places[-1]])
        defined = {n.name for n in tree.body if isinstance(n, Definition)}
        defined |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        for alias in node.names:
            if alias.name not in defined:
                yield f"{path}: {node.module} has no {alias.name}"
