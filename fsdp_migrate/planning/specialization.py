"""Functions of the support library, specialized to the calls that a program makes of them.

A support function answers for every argument that FSDP1 took; a program passes a few of them. What
a parameter is when no call passes it is known, and so is which branches are never taken then: they
are left out, with the parameter, and with the functions that nothing calls any more (Jones, Gomard
and Sestoft, *Partial Evaluation and Automatic Program Generation*, 1993).

Only for the library's own code, whose conditions do nothing but ask.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fsdp_migrate.planning.library_source import Library, assigned, parameters_of, span_of, start_of
from fsdp_migrate.planning.line_layout import INDENT, joined, shifted, wrapped
from fsdp_migrate.planning.partial_evaluation import (
    EMPTY,
    Entries,
    Known,
    Reached,
    ends,
)
from fsdp_migrate.syntax.kinds import of_kind
from fsdp_migrate.syntax.trees import last_part, walk

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

ASKING = frozenset({"getattr", "isinstance", "modules", "named_parameters", "parameters", "vars"})


def facts_of(text: str) -> frozenset[str]:
    """The names that a library sets to True at its top: what a program may have."""
    return frozenset(Library(text).facts)


def specialize(text: str, entries: Entries, lacking: Collection[str] = ()) -> dict[str, str]:
    """The source of each function and class of a library that its users reach, in its order.

    Args:
        text: the library's source; its functions call each other without recursion.
        entries: what is called from outside; functions that only these call are specialized to
            those calls.
        lacking: those of :func:`facts_of` that do not hold.
    """
    library = Library(text, lacking)
    reached = Reached(library, entries)
    for name in library.callers_first:
        if name in reached.calls:
            reached.follow(name)
    dropped: dict[str, frozenset[str]] = {}
    result: dict[str, str] = {}
    for name in reversed(library.callers_first):
        if name not in reached.calls:
            continue
        function = library.definitions[name]
        known = reached.specialized(name)
        writer = _Writer(library, known, dropped)
        if isinstance(function, ast.ClassDef):
            facts = any(getattr(n, "id", "") in library.facts for n in walk(function))
            text = library.segment(function)
            result[name] = writer.written_class(function) if facts else text
            continue
        kept = None if name in reached.open else entries.get(name, ())
        result[name], dropped[name] = writer.written(kept)
    return {name: result[name] for name in library.definitions if name in result}


@dataclass
class _Writer:
    """Writes a function down with nothing in it that is known beforehand."""

    library: Library
    known: Known
    dropped: Mapping[str, Collection[str]]  # parameters that other functions have no more
    unused: set[str] = field(default_factory=set)  # local names that nothing reads
    second: dict[str, str] = field(default_factory=dict)  # local names that a parameter has too

    def written_class(self, node: ast.ClassDef) -> str:
        head = self.library.lines[start_of(node)[0] - 1 : node.body[0].lineno - 1]
        return "\n".join([*head, *self.block(node.body, INDENT)])

    def written(self, kept: Collection[str] | None) -> tuple[str, frozenset[str]]:
        """The source, and the parameters that it has no more.

        Args:
            kept: parameters that calls from outside pass, which stay; None keeps all.
        """
        function = self.known.function
        assert isinstance(function, ast.FunctionDef)
        while True:
            body = self.block(function.body, INDENT)
            read = _read(body)
            bound = set(map(self._bound, self.known.live(function.body))) - {""}
            unused = bound - read - self.unused
            if not unused:
                break
            self.unused |= unused
        parameters = parameters_of(function)
        drop = frozenset(n for n in parameters if n not in read)
        drop = frozenset() if kept is None else drop - set(kept)
        lines = [*self._head(function, drop), *_docstring(body, drop)]
        return "\n".join(lines), drop

    def _bound(self, statement: ast.stmt) -> str:
        """The name that a statement binds, and does nothing else."""
        if isinstance(statement, ast.FunctionDef):
            return statement.name
        name, value = assigned(statement)
        if value is None or self.known.constant(value) is not None:
            return name
        called = {last_part(n.func) for n in walk(value) if isinstance(n, ast.Call)}
        return name if called <= ASKING else ""

    def _head(self, function: ast.FunctionDef, drop: Collection[str]) -> list[str]:
        first = min([function.lineno, *(d.lineno for d in function.decorator_list)])
        source = self.library.lines[first - 1 : function.body[0].lineno - 1]
        if not drop:
            return source
        given = function.args
        kept: list[str] = []
        for each in (*given.posonlyargs, *given.args):
            kept.append(self._parameter(function, each))
        if given.vararg is not None:
            kept.append("*" + self.library.segment(given.vararg))
        elif any(p.arg not in drop for p in given.kwonlyargs):
            kept.append("*")
        kept += [self._parameter(function, p) for p in given.kwonlyargs]
        if given.kwarg is not None:
            kept.append("**" + self.library.segment(given.kwarg))
        listed = [p for p in kept if re.split(r"[:=]", p)[0].strip() not in drop]
        returns = f" -> {self.library.segment(function.returns)}" if function.returns else ""
        decorators = self.library.lines[first - 1 : function.lineno - 1]
        line = f"def {function.name}({', '.join(listed)}){returns}:"
        return [*decorators, *wrapped(line)]

    def _parameter(self, function: ast.FunctionDef, parameter: ast.arg) -> str:
        default = parameters_of(function)[parameter.arg]
        text = self.library.segment(parameter)
        return text if default is None else f"{text} = {self.library.segment(default)}"

    # Statements.

    def block(self, body: Sequence[ast.stmt], indent: str) -> list[str]:
        """The lines of statements that may run, with the comments above them."""
        lines: list[str] = []
        whole = True
        parted = False  # by a blank line, above something that is gone
        for index, statement in enumerate(body):
            above = self._above(statement, body[index - 1] if index else None, indent)
            new = self.statement(statement, indent)
            if not new:
                parted = parted or "" in above
                whole = False
                continue
            lines += ["", *above, *new] if parted and "" not in above else [*above, *new]
            parted = False
            if isinstance(statement, ast.If) and self.known.truth(statement.test) is not None:
                taken = self.known.truth(statement.test)
                if ends(statement.body if taken else statement.orelse):
                    break
        while lines and not whole and not lines[0].strip():
            lines.pop(0)
        return lines

    def _above(self, statement: ast.stmt, before: ast.stmt | None, indent: str) -> list[str]:
        """Comments and blank lines between a statement and the one before it."""
        decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
        at = min([statement.lineno, *(d.lineno for d in decorators)]) - 1
        first = at
        while first and re.match(r"\s*(#|$)", self.library.lines[first - 1]):
            first -= 1
        if before is not None:
            first = max(first, before.end_lineno or 0)
        lines = [line.strip() for line in self.library.lines[first:at]]
        return [indent + line if line else "" for line in lines]

    def statement(self, node: ast.stmt, indent: str) -> list[str]:
        if isinstance(node, ast.If):
            return self._branches(node, indent, "if")
        target, value = assigned(node)
        if isinstance(node, ast.FunctionDef):
            target = node.name
        if target in self.unused or (target and target in self.known.names and value is not None):
            return []
        if value is not None and self._names_again(target, value):
            return []
        if isinstance(node, ast.For) and self.known.constant(node.iter) in EMPTY:
            return []
        if self.known.does_nothing(node):
            return []
        if isinstance(node, (ast.For, ast.While, ast.With, ast.FunctionDef)):
            inner = self.block(node.body, indent + INDENT)
            return [*self._line(node, indent, node.body[0]), *inner] if inner else []
        if isinstance(node, ast.Try):
            tried = [f"{indent}try:", *self.block(node.body, indent + INDENT)]
            final = self.block(node.finalbody, indent + INDENT)
            return [*tried, f"{indent}finally:", *final]
        return self._line(node, indent)

    def _names_again(self, target: str, value: ast.expr) -> bool:
        """Note a local name that is another one of a parameter, once a choice is made."""
        function, text = self.known.function, self.text(value)
        if isinstance(function, ast.ClassDef) or isinstance(value, ast.Name):
            return False
        stored = self.known.stored()
        if text not in parameters_of(function):
            return False
        if stored.get(text) or stored.get(target) != 1:
            return False
        self.second[target] = text
        return True

    def _branches(self, node: ast.If, indent: str, word: str) -> list[str]:
        truth = self.known.truth(node.test)
        inner = indent + INDENT
        if truth is not None:
            taken = node.body if truth else node.orelse
            if word == "if":
                return self.block(taken, indent) if taken else []
            if not taken:
                return []
            if not truth and self._is_elif(node):
                return self._branches(of_kind(node.orelse[0], ast.If), indent, "elif")
            return [f"{indent}else:", *self.block(taken, inner)]
        body = self.block(node.body, inner)
        rest: list[str] = []
        if node.orelse and self._is_elif(node):
            rest = self._branches(of_kind(node.orelse[0], ast.If), indent, "elif")
        elif node.orelse:
            rest = self.block(node.orelse, inner)
            rest = [f"{indent}else:", *rest] if rest else []
        if not body and not rest:
            return []
        return [*self._line(node, indent, node.body[0], word), *(body or [f"{inner}pass"]), *rest]

    def _is_elif(self, node: ast.If) -> bool:
        other = node.orelse[0] if node.orelse else None
        return isinstance(other, ast.If) and self.library.lines[
            other.lineno - 1
        ].lstrip().startswith("elif")

    def _line(
        self, node: ast.stmt, indent: str, body: ast.stmt | None = None, word: str = ""
    ) -> list[str]:
        """A statement without its blocks; as it stands in the library if nothing in it changes."""
        end = (node.end_lineno or 0, node.end_col_offset or 0)
        if body is not None:
            last = body.lineno - 1
            while re.match(r"\s*(#|$)", self.library.lines[last - 1]):
                last -= 1
            end = (last, len(self.library.lines[last - 1].partition("  #")[0]))
        start = (node.lineno, node.col_offset)
        inside = [child for child in _placed(node) if not isinstance(child, ast.stmt)]
        old = self.library.between(start, end)
        new = self._spliced(inside, start, end)
        comment = self.library.lines[end[0] - 1][end[1] :]
        if word == "if" and old.startswith("elif"):
            new = new[2:]
        if new == old:
            shift = len(indent) - node.col_offset
            moved = [shifted(line, shift) for line in (old + comment).split("\n")[1:]]
            return [indent + (old + comment).split("\n")[0], *moved]
        lines = wrapped(joined(new), indent)
        lines[-1] += comment
        return lines

    # Expressions.

    def text(self, node: ast.AST) -> str:
        """The source of an expression without what is known."""
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            loaded = isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
            constant = self.known.constant(node) if loaded else None
            names = {n.id for n in walk(node) if isinstance(n, ast.Name)}
            if constant is not None and not names <= {"set", "frozenset"}:
                return constant
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if name in self.second:
                return self.second[name]
            case ast.IfExp() if self.known.chosen(node) is not node:
                return self._inner(self.known.chosen(node))
            case ast.BoolOp() if self.known.operands(node) != node.values:
                word = " or " if isinstance(node.op, ast.Or) else " and "
                return word.join(map(self._inner, self.known.operands(node)))
            case ast.Dict() if any(k is None and self._gone(v) for k, v in _items(node)):
                kept = [(k, v) for k, v in _items(node) if k is not None or not self._gone(v)]
                if len(kept) == 1 and kept[0][0] is None:
                    return self.text(kept[0][1])
                parts = [
                    f"{self.text(k)}: {self.text(v)}" if k is not None else f"**{self.text(v)}"
                    for k, v in kept
                ]
                return "{" + ", ".join(parts) + "}"
            case ast.Call(func=ast.Name(id=name)) if self.dropped.get(name):
                return self._call(node)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                if any(map(self.known.truth, (c for g in node.generators for c in g.ifs))):
                    return self._comprehension(node)
        start, end = span_of(node)
        return self._spliced(_placed(node), start, end)

    def _comprehension(self, node: Comprehension) -> str:
        whole = self.library.segment(node)
        if isinstance(node, ast.DictComp):
            text = f"{self.text(node.key)}: {self.text(node.value)}"
        else:
            text = self.text(node.elt)
        for each in node.generators:
            text += f" for {self.text(each.target)} in {self.text(each.iter)}"
            text += "".join(f" if {self.text(c)}" for c in each.ifs if not self.known.truth(c))
        return whole[0] + text + whole[-1]

    def _inner(self, node: ast.expr) -> str:
        """An expression where another one stood, in brackets if those around might take a part."""
        text = self.text(node)
        kept = self.known.operands(node) if isinstance(node, ast.BoolOp) else [node]
        loose = isinstance(node, (ast.IfExp, ast.BoolOp, ast.Lambda)) and len(kept) > 1
        return f"({text})" if loose else text

    def _gone(self, node: ast.expr) -> bool:
        return self.known.constant(node) in EMPTY

    def _call(self, call: ast.Call) -> str:
        function = self.library.definitions[of_kind(call.func, ast.Name).id]
        assert isinstance(function, ast.FunctionDef)
        gone = self.dropped[function.name]
        names = list(parameters_of(function))
        given = [self.text(a) for n, a in zip(names, call.args, strict=False) if n not in gone]
        for keyword in call.keywords:
            if keyword.arg is None:
                given.append(f"**{self.text(keyword.value)}")
            elif keyword.arg not in gone:
                given.append(f"{keyword.arg}={self.text(keyword.value)}")
        return f"{function.name}({', '.join(given)})"

    def _spliced(
        self, inside: Iterable[ast.AST], start: tuple[int, int], end: tuple[int, int]
    ) -> str:
        """The source from a place to another, with the new text of what stands in it."""
        text, at = "", start
        for node in sorted(inside, key=span_of):
            first, last = span_of(node)
            if first < at:
                continue
            text += self.library.between(at, first) + self.text(node)
            at = last
        return text + self.library.between(at, end)


def _placed(node: ast.AST) -> Iterator[ast.AST]:
    """What is directly in a node and has a place in the source."""
    for child in ast.iter_child_nodes(node):
        if hasattr(child, "lineno"):
            yield child
        else:
            yield from _placed(child)


def _items(node: ast.Dict) -> list[tuple[ast.expr | None, ast.expr]]:
    return list(zip(node.keys, node.values, strict=True))


def _read(lines: Sequence[str]) -> set[str]:
    """The names that the body of a function reads."""
    tree = ast.parse("if True:\n" + "\n".join(lines))
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _docstring(body: Sequence[str], drop: Collection[str]) -> list[str]:
    """A body whose docstring says nothing of parameters that are gone, nor of errors."""
    text = "\n".join(body)
    for name in drop:
        text = re.sub(rf"\n {{8}}{name}: .*(\n {{12}}.*)*", "", text, count=1)
    for error in re.findall(r"\n {8}(\w*Error): ", text):
        if f"raise {error}" not in text:
            text = re.sub(rf"\n {{8}}{error}: .*(\n {{12}}.*)*", "", text, count=1)
    text = re.sub(r"\n\n {4}(Args|Raises):(?=\n(\n|    \"\"\"))", "", text)
    text = re.sub(r'^( {4}""".*)\n {4}"""', r'\1"""', text)
    return text.split("\n")
