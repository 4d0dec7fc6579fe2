"""The source of the support library, function by function."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property

from fsdp_migrate.syntax.trees import walk

Definition = ast.FunctionDef | ast.ClassDef


class Library:
    """The source and the functions in it."""

    def __init__(self, text: str, lacking: Collection[str] = ()) -> None:
        self.lines = text.split("\n")
        body = ast.parse(text).body
        names = [assigned(node)[0] for node in body]
        self.facts = {name: str(name not in lacking) for name in names if name}
        self.returned: dict[tuple[str, frozenset[tuple[str, str]]], str | None] = {}
        found = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
        self.definitions: dict[str, Definition] = {n.name: n for n in found}

    @cached_property
    def callers_first(self) -> list[str]:
        """The names, each before those that it uses."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            if name not in found:
                for used in self.used(walk(self.definitions[name]), self.definitions[name]):
                    visit(used.id)
                found[name] = None

        for name in self.definitions:
            visit(name)
        return list(reversed(found))

    def used(self, nodes: Iterable[ast.AST], definition: Definition) -> Iterator[ast.Name]:
        """The names among ``nodes`` that are other functions of the library."""
        own: set[str] = {definition.name}
        if isinstance(definition, ast.FunctionDef):
            own |= parameters_of(definition).keys()
        for node in nodes:
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            if node.id in self.definitions and node.id not in own:
                yield node

    def segment(self, node: ast.AST) -> str:
        """The source of a node, a definition's decorators among it."""
        return self.between(start_of(node), span_of(node)[1])

    def between(self, start: tuple[int, int], end: tuple[int, int]) -> str:
        lines = self.lines[start[0] - 1 : end[0]]
        lines[-1] = lines[-1][: end[1]]
        lines[0] = lines[0][start[1] :]
        return "\n".join(lines)


def parameters_of(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> dict[str, ast.expr | None]:
    """The parameters by name, each with its default; none of stars."""
    given = function.args
    listed = [*given.posonlyargs, *given.args]
    missing: list[ast.expr | None] = [None] * (len(listed) - len(given.defaults))
    defaults = [*missing, *given.defaults, *given.kw_defaults]
    names = [p.arg for p in (*listed, *given.kwonlyargs)]
    return dict(zip(names, defaults, strict=True))


def passed(call: ast.Call, function: ast.FunctionDef) -> dict[str, ast.expr] | None:
    """What a call passes by parameter; None where stars may pass anything."""
    names = list(parameters_of(function))
    if any(isinstance(a, ast.Starred) for a in call.args):
        return None
    if any(k.arg is None for k in call.keywords) and function.args.kwarg is None:
        return None
    found = dict(zip(names, call.args, strict=False))
    return found | {k.arg: k.value for k in call.keywords if k.arg is not None}


def start_of(node: ast.AST) -> tuple[int, int]:
    """Where a node starts, a definition with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    start = span_of(node)[0]
    first = min([start[0], *(d.lineno for d in decorators)])
    return start if first == start[0] else (first, 0)


def span_of(node: ast.AST) -> tuple[tuple[int, int], tuple[int, int]]:
    start = (node.lineno, node.col_offset)  # type: ignore[attr-defined]
    return start, (node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]


def assigned(statement: ast.stmt) -> tuple[str, ast.expr | None]:
    """The name that a statement binds to a value, with that."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return name, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            return name, value
    return "", None
