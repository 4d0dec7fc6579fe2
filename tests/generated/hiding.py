"""Ways to hide a model from whoever reads a program, none of which changes what it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# How an expression may be written instead, by a name for it: ``{}`` stands for the expression.
# What comes after ``|`` has to stand at the top of the file.
EXPRESSIONS: Mapping[str, str] = {
    "a list": "[{}][0]",
    "a tuple": "({},)[0]",
    "a dictionary": "{{'net': {}}}['net']",
    "a generator": "next(each for each in [{}])",
    "an iterator": "next(iter([{}]))",
    "a walrus": "(hidden := {})",
    "a conditional": "({} if hidden_flag else {})|hidden_flag = bool(1)",
    "or": "({} or hidden_flag)|hidden_flag = None",
    "a lambda": "(lambda: {})()",
    "a lambda's parameter": "(lambda net: net)({})",
    "a function": "hidden_same({})|def hidden_same(it):\n    return it",
    "a function by keyword": "hidden_same(it={})|def hidden_same(it):\n    return it",
    "stars": "hidden_last(*(0, {}))|def hidden_last(*things):\n    return things[-1]",
    "double stars": (
        "hidden_net(**{{'net': {}}})|def hidden_net(**things):\n    return things['net']"
    ),
    "a callback": (
        "hidden_call(lambda net: net, {})|def hidden_call(function, it):\n    return function(it)"
    ),
    "a yield": "next(hidden_each({}))|def hidden_each(it):\n    yield it",
    "a closure": (
        "hidden_keep({})()|def hidden_keep(it):\n    def give():\n        return it\n"
        "    return give"
    ),
    "an object": ("Hidden({}).it|class Hidden:\n    def __init__(self, it):\n        self.it = it"),
    "a property": (
        "Hidden({}).it|class Hidden:\n    def __init__(self, it):\n        self._it = it\n"
        "    @property\n    def it(self):\n        return self._it"
    ),
    "a named tuple": (
        "Hidden({}, 0).it|import collections\n"
        "Hidden = collections.namedtuple('Hidden', ['it', 'other'])"
    ),
    "a data class": (
        "Hidden({}).it|import dataclasses\n@dataclasses.dataclass\nclass Hidden:\n    it: object"
    ),
    "a simple namespace": "types.SimpleNamespace(it={}).it|import types",
    "getattr": "getattr(types.SimpleNamespace(it={}), 'it')|import types",
    "a weak reference": "weakref.ref({})()|import weakref",
    "partial": (
        "functools.partial(hidden_same, {})()|import functools\ndef hidden_same(it):\n    return it"
    ),
    "vars": "vars(types.SimpleNamespace(it={}))['it']|import types",
    "a cast": "typing.cast('object', {})|import typing",
    "a stack": "[0, {}].pop()",
    "a max": "max([{}], key=id)",
    "an unknown function": "elsewhere.passed({})|import elsewhere",
    "an unknown object": "elsewhere.Holder({}).net|import elsewhere",
}
# Ways to put a statement somewhere else.
STATEMENTS: Mapping[str, str] = {
    "a flag": "if hidden_flag:\n{}|hidden_flag = bool(1)",
    "an else": "if not hidden_flag:\n    pass\nelse:\n{}|hidden_flag = bool(1)",
    "a loop": "for hidden_index in range(1):\n{}",
    "try": "try:\n{}\nfinally:\n    pass",
    "an except": "try:\n    raise KeyError\nexcept KeyError:\n{}",
    "with": "with contextlib.nullcontext():\n{}|import contextlib",
    "a while": "while True:\n{}\n    break",
    "a match": "match hidden_flag:\n    case _:\n{0}|hidden_flag = bool(1)",
}
INNER = {"a match": 2}  # levels of indentation, where not one


@dataclass(frozen=True)
class Hidden:
    """A file in which something is hidden, and the line that the statement begins in now."""

    text: str
    line: int
    column: int


def hide_expression(source: str, node: ast.expr, statement: ast.stmt, way: str) -> Hidden | None:
    """Write an expression another way; None where that does not go."""
    form, _, above = EXPRESSIONS[way].partition("|")
    lines = source.splitlines(keepends=True)
    if node.end_lineno != node.lineno or not source.isascii():
        return None
    line = lines[node.lineno - 1]
    written = line[node.col_offset : node.end_col_offset]
    new = form.format(written, written)
    lines[node.lineno - 1] = line[: node.col_offset] + new + line[node.end_col_offset :]
    return _with_top(lines, above, statement.lineno, statement.col_offset)


def hide_statement(source: str, statement: ast.stmt, way: str) -> Hidden | None:
    """Put a statement into another one; None where that does not go."""
    form, _, above = STATEMENTS[way].partition("|")
    lines = source.splitlines(keepends=True)
    first, last = statement.lineno - 1, statement.end_lineno or statement.lineno
    taken = lines[first:last]
    if any(text in "".join(taken) for text in ('"""', "'''", "\\\n", ";")) or not source.isascii():
        return None
    indent = " " * statement.col_offset
    if lines[first][: statement.col_offset].strip() or not taken[-1].endswith("\n"):
        return None
    deeper = "    " * INNER.get(way, 1)
    body = "".join(deeper + line if line.strip() else line for line in taken).rstrip("\n")
    before, _, after = form.partition("{0}" if "{0}" in form else "{}")
    head = "".join(indent + line + "\n" for line in before.splitlines())
    tail = "".join(indent + line + "\n" for line in after.splitlines() if line)
    lines[first:last] = [head + body + "\n" + tail]
    moved = before.count("\n")
    column = statement.col_offset + len(deeper)
    return _with_top(lines, above, statement.lineno + moved, column)


def _with_top(lines: list[str], above: str, line: int, column: int) -> Hidden | None:
    """Put what has to stand at the top of a file after its docstring and ``__future__``."""
    added = [f"{each}\n" for each in above.splitlines()]
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None  # a walrus in a comprehension, a name in a ``del``
    place = _place(tree)
    if place >= line:
        return None
    text = "".join([*lines[:place], *added, *lines[place:]])
    return Hidden(text, line + len(added), column)


def _place(tree: ast.Module) -> int:
    """After how many lines the first statement may be put."""
    place = 0
    for statement in tree.body:
        match statement:
            case ast.Expr(value=ast.Constant(value=str())) if statement is tree.body[0]:
                place = statement.end_lineno or 0
            case ast.ImportFrom(module="__future__"):
                place = statement.end_lineno or 0
    return place


def heads(tree: ast.AST) -> Iterator[tuple[ast.stmt, str]]:
    """Every statement with its own text, and that of the statement around it.

    What is inside of a compound one has its own entry.
    """
    for parent in ast.walk(tree):
        around = _head(parent) if isinstance(parent, ast.stmt) else ""
        for node in ast.iter_child_nodes(parent):
            head = _head(node) if isinstance(node, ast.stmt) else ""
            if head and isinstance(node, ast.stmt):
                yield node, f"{around}: {head}" if around else head


def _head(node: ast.stmt) -> str:
    """The text of a statement, without what is inside of it; nothing of those that do nothing."""
    match node:
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return f"with {', '.join(map(ast.unparse, items))}"
        case ast.If(test=test) | ast.While(test=test):
            return f"if {ast.unparse(test)}"
        case ast.For(iter=over) | ast.AsyncFor(iter=over):
            return f"for {ast.unparse(over)}"
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Try():
            return ""
        case ast.Match() | ast.Import() | ast.ImportFrom():
            return ""
    asks = any(isinstance(each, (ast.Attribute, ast.Call)) for each in ast.walk(node))
    return ast.unparse(node) if asks else ""
