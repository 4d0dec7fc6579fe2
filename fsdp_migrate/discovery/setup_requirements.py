"""The texts that a ``setup.py`` requires packages with, also those that go through variables.

A name is one thing in the whole file, whatever the scope: what more is bound to it is required too.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator

ARGUMENTS = frozenset({"install_requires", "extras_require"})
COMPUTED = "it is put together by code that is not followed"
LISTED = "it goes through code that is not followed"
_COPIES = frozenset({"dict", "list", "sorted", "tuple"})
_ADDS_ONE = frozenset({"append", "insert"})

Text = ast.Constant | ast.JoinedStr
_Take = Callable[[ast.expr, str], None]


def find(tree: ast.Module) -> Iterator[tuple[Text, str]]:
    """Texts from which the requirements are made, each with why it must stay, or an empty text."""
    found = _Finder(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "setup":
            found.arguments(node)
    for text, every in found.texts.items():
        # What is required as it stands may be put into further lists: extras["all"] = sum(...)
        reasons = [why for why in every if why != LISTED or "" not in every]
        other = next(filter(found.has_other_use, found.names(text)), "")
        if other:
            reasons.append(f"{other} is used for something else too")
        yield text, next(filter(None, reasons), "")


class _Finder:
    def __init__(self, tree: ast.Module) -> None:
        self.texts: dict[Text, list[str]] = defaultdict(list)
        self._values: dict[str, list[ast.expr]] = defaultdict(list)  # what a name is set to
        self._more: dict[str, list[tuple[bool, ast.expr]]] = defaultdict(list)  # one item, or many
        self._functions: dict[str, list[ast.AST]] = defaultdict(list)
        self._bound: dict[str, int] = defaultdict(int)  # times that are none of these
        self._loads: dict[str, list[ast.Name]] = defaultdict(list)
        self._used: set[ast.expr] = set()
        self._name = ""  # whose values are being looked at
        self._users: dict[Text | str, set[str]] = defaultdict(set)  # what a text or name goes into
        self._done: set[tuple[str, str, str]] = set()
        for node in ast.walk(tree):
            self._look_at(node)

    def _look_at(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self._loads[node.id].append(node)
            else:
                self._bound[node.id] += 1
        elif isinstance(node, ast.arg):
            self._bound[node.arg] += 1
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            self._functions[node.name].append(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._assign(target, node.value, added=isinstance(node, ast.AugAssign))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            self._add(node.func.value, node.func.attr, node.args)

    def _assign(self, target: ast.expr, value: ast.expr, *, added: bool) -> None:
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self._used.add(target.value)  # extras["gpu"] = ...
            self._more[target.value.id].append((False, value))
        elif isinstance(target, ast.Name):
            self._bound[target.id] -= 1
            if added:
                self._more[target.id].append((False, value))
            else:
                self._values[target.id].append(value)

    def _add(self, holder: ast.expr, method: str, args: list[ast.expr]) -> None:
        if isinstance(holder, ast.Name) and args and method in {*_ADDS_ONE, "extend"}:
            self._used.add(holder)
            self._more[holder.id].append((method in _ADDS_ONE, args[-1]))

    def names(self, text: Text) -> list[str]:
        """The names that a text goes through."""
        found: dict[str, None] = {}
        waiting = sorted(self._users[text])
        for name in waiting:
            if name and name not in found:
                found[name] = None
                waiting += sorted(self._users[name])
        return list(found)

    def has_other_use(self, name: str) -> bool:
        return any(load not in self._used for load in self._loads[name])

    def arguments(self, call: ast.Call) -> None:
        """Take what the arguments of ``setup``, or of a ``dict`` that it gets, require."""
        for keyword in call.keywords:
            if keyword.arg in ARGUMENTS:
                self.items(keyword.value, "")
            elif keyword.arg is None:
                value = keyword.value
                for given in self._values[value.id] if isinstance(value, ast.Name) else [value]:
                    self._opened(given)

    def _opened(self, node: ast.expr) -> None:
        match node:
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value in ARGUMENTS:
                        self.items(value, "")
            case ast.Call(func=ast.Name(id="dict")):
                self.arguments(node)

    def items(self, node: ast.expr, why: str) -> None:
        """Take what stands for several requirements."""
        match node:
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                for part in parts:
                    self.item(part, why)
            case ast.Dict(values=parts) | ast.BoolOp(values=parts):
                self._each(parts, why)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                self._each([left, right], why)
            case ast.IfExp(body=left, orelse=right):
                self._each([left, right], why)
            case ast.Call(func=ast.Name(id=name), args=parts, keywords=[]) if name in _COPIES:
                self._each(parts, why)
            case ast.Call(func=ast.Name(id="dict"), args=[], keywords=named):
                self._each([each.value for each in named], why)
            case ast.Subscript(value=ast.Name() as name):
                self._variable(name, why, self.items)
            case ast.Name():
                self._variable(node, why, self.items)
            case ast.Constant():
                self._text(node, why)
            case _:
                self._computed(node, LISTED)

    def _each(self, parts: list[ast.expr], why: str) -> None:
        for part in parts:
            self.items(part, why)

    def item(self, node: ast.expr, why: str) -> None:
        """Take what stands for one requirement."""
        match node:
            case ast.Constant():
                self._text(node, why)
            case ast.Name():
                self._variable(node, why, self.item)
            case ast.Starred(value=value):
                self.items(value, why)
            case ast.IfExp(body=left, orelse=right):
                self.item(left, why)
                self.item(right, why)
            case _:
                self._computed(node, COMPUTED)

    def _text(self, node: Text, why: str) -> None:
        self.texts[node].append(why)
        self._users[node].add(self._name)

    def _variable(self, node: ast.Name, why: str, take: _Take) -> None:
        name, more = node.id, self._more[node.id]
        self._used.add(node)
        self._users[name].add(self._name)
        if self._bound[name] or (more and take == self.item):
            why = COMPUTED
        if (name, take.__name__, why) in self._done:
            return
        self._done.add((name, take.__name__, why))
        outer, self._name = self._name, name
        for value in self._values[name]:
            take(value, why)
        for one, value in more:
            (take if take == self._computed else self.item if one else self.items)(value, why)
        for function in self._functions[name] if take == self._computed else ():
            self._computed(function, why)
        self._name = outer

    def _computed(self, node: ast.AST, why: str) -> None:
        """Take every text that may go into what ``node`` is."""
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and node.value != "torch"
        ):
            self._text(node, why)
        elif isinstance(node, ast.Name):
            self._variable(node, why, self._computed)
        else:
            for each in ast.iter_child_nodes(node):
                self._computed(each, why)
