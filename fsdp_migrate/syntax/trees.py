"""Walking a syntax tree, and the last parts of the paths in it."""

from __future__ import annotations

import ast

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ITEM = "[]"
_INSIDE = "_inside"  # where a node keeps what is in it


def last_part(path: ast.expr) -> str:
    """``model`` of ``self.model``, and ``ITEM`` of what ends in an item: ``models[0]``."""
    if type(path) is ast.Name:
        return path.id
    if type(path) is ast.Attribute:
        return path.attr
    return ITEM if type(path) is ast.Subscript else ""


def position(node: ast.AST) -> tuple[int, int]:
    """The line and column of a node, 0 of what has none."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def block_of(parent: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which one stands."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def asks_for_main(node: ast.stmt) -> bool:
    """``if __name__ == "__main__":``, either way round."""
    match node:
        case ast.If(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
            named = {getattr(left, "id", ""), getattr(right, "id", "")}
            values = (getattr(left, "value", ""), getattr(right, "value", ""))
            return "__name__" in named and "__main__" in values
    return False


def does_something(node: ast.stmt) -> bool:
    """Whether a statement does something when its file is started, and not just binds names."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            return False
        case ast.If() | ast.Try():
            return any(
                map(
                    does_something,
                    (n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)),
                )
            )
    return not isinstance(
        node, (*DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    )


def split_path(node: ast.expr) -> tuple[ast.Name | None, str]:
    """``a`` and ``.b.c`` of ``a.b.c``."""
    rest = ""
    while isinstance(node, ast.Attribute):
        rest = f".{node.attr}{rest}"
        node = node.value
    return (node if isinstance(node, ast.Name) else None), rest


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes directly in another, without operators and contexts, which have no position."""
    found: list[ast.AST] = []
    fields = node.__dict__
    for name in NODE_FIELDS[node.__class__]:
        if name not in fields:
            continue  # of one that a rule made, without what is optional
        value = fields[name]
        if value.__class__ is list:
            found += [item for item in value if item.__class__ in NODE_FIELDS]
        elif value.__class__ in NODE_FIELDS:
            found += (value,)
    return found


def walk(node: ast.AST) -> tuple[ast.AST, ...]:
    """As ``ast.walk`` and in its order, but of :func:`children` only. Trees do not change: what was
    found is kept with the node, since most functions are gone through for many questions."""
    fields = node.__dict__
    if _INSIDE not in fields:
        found = [node]
        for each in found:  # which grows meanwhile
            if NODE_FIELDS[each.__class__]:
                found += children(each)
        fields[_INSIDE] = found[1:]  # without the node: a tree that nobody needs is freed
    return (node, *fields[_INSIDE])


def _node_fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """The fields in which a node may have others that have a place in the source."""
    if kind is ast.Constant:
        return ()
    return tuple(name for name in kind._fields if name not in _PLAIN)


_PLAIN = frozenset(
    (
        *("ctx", "op", "ops", "id", "attr", "arg", "asname", "module", "level", "rest"),
        *("kwd_attrs",),
        *("type_comment", "type_ignores", "kind", "is_async", "conversion", "simple"),
    )
)
NODE_FIELDS = {
    kind: _node_fields(kind)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST)
}


def place_in(target: ast.Tuple | ast.List, index: int) -> int:
    """Which element of a value goes to an element of a target; behind a star from the end."""
    behind = any(isinstance(e, ast.Starred) for e in target.elts[:index])
    return index - len(target.elts) if behind else index
