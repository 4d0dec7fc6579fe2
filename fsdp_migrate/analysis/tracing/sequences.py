"""What stands at a place of a sequence: in a tuple, a part of one, or among arguments with a star.

``step(3, *state[:2])`` gives the second parameter of ``step`` what ``state`` has first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import product
from typing import NamedTuple

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.tracing import named_tuples
from fsdp_migrate.analysis.tracing.evaluator import Evaluator
from fsdp_migrate.analysis.tracing.functions import class_of_method, is_static
from fsdp_migrate.analysis.tracing.project_index import ProjectIndex
from fsdp_migrate.analysis.values import (
    UNCALLED,
    Display,
    Frame,
    Made,
    Unknown,
    Value,
    Values,
)
from fsdp_migrate.syntax.trees import FUNCTIONS

MAX_READ = 32  # sequences that one is made of
MAX_ALTERNATIVES = 16  # of what a sequence may be
GATHER = "asyncio.gather"  # gives what each of its arguments gives, in their order
AS_THEY_ARE = frozenset({"builtins.tuple", "builtins.list"})
THROUGH_STARS = "it is passed through *args or **kwargs"


class Element(NamedTuple):
    """An expression, and where it stands."""

    node: ast.expr
    module: Module
    frame: Frame | None


class Sequence(NamedTuple):
    """The first elements of a sequence; if it is open, more may follow that nobody knows, and why
    if that is known."""

    elements: tuple[Element, ...] = ()
    is_open: bool = False
    why: str = ""


Known = dict[tuple[ast.AST, Frame | None], list[Sequence]]


class Missing(Exception):
    """A sequence is too short to have an element at the place asked for."""


OPEN = Sequence(is_open=True)


class Sequences:
    """Reads tuples, lists and arguments element by element."""

    def __init__(self, tracer: Evaluator, index: ProjectIndex) -> None:
        self.tracer = tracer
        self.evaluate = tracer.evaluate
        self.index = index

    def at(self, sequence: Sequence, place: int, asked: Value) -> Values:
        """The values at a place, which counts from the end if it is negative."""
        elements = sequence.elements
        if sequence.is_open and not 0 <= place < len(elements):
            why = sequence.why or (asked.why if isinstance(asked, Unknown) else THROUGH_STARS)
            return frozenset({Unknown(asked.node, asked.module, asked.frame, why)})
        if not -len(elements) <= place < len(elements):
            raise Missing
        found = elements[place]
        return self.evaluate(found.node, found.module, found.frame)

    def part(self, value: Value, place: int) -> list[Value] | None:
        """The values at a place of one that is written out, or of ``*args``; None of others."""
        node = value.node
        display = isinstance(value, Display) and isinstance(node, (ast.Tuple, ast.List))
        known = display or (isinstance(value, Made) and value.made_by == GATHER)
        known = known or named_tuples.elements(value, self.tracer) is not None
        if not known and not isinstance(node, (ast.arg, ast.Subscript, ast.BinOp)):
            return None
        result: list[Value] = []
        for sequence in self.of(value):
            if sequence.is_open and not sequence.elements:
                return None
            try:
                result += self.at(sequence, place, value)
            except Missing:
                continue  # it cannot be this one
        return result or None

    def of(self, value: Value, known: Known | None = None) -> list[Sequence]:
        """What a value may be as a sequence.

        Args:
            known: what has been read for the same question; of what is made of itself, nothing is.
        """
        known = {} if known is None else known
        key = value.node, value.frame
        if key not in known:
            known[key] = [OPEN]
            found = self._of(value, known) if len(known) <= MAX_READ else [OPEN]
            known[key] = found if len(found) <= MAX_ALTERNATIVES else [OPEN]
        return known[key]

    def _of(self, value: Value, known: Known) -> list[Sequence]:
        node, module, frame = value.node, value.module, value.frame
        named = named_tuples.elements(value, self.tracer)
        if named is not None:  # its fields may have defaults
            return [Sequence(tuple(Element(e, module, frame) for e in named), is_open=True)]
        match node:
            case ast.Tuple(elts=given) if isinstance(value, Display):
                return self.spread(given, module, frame, known)
            case ast.List(elts=given) if isinstance(value, Display):
                grows = self.grows(node, module)
                found = self.spread(given, module, frame, known)
                return [Sequence(s.elements, s.is_open or grows, s.why) for s in found]
            case ast.BinOp(op=ast.Add(), left=left, right=right) if _adds_display(node):
                both = [self._read(side, module, frame, known) for side in (left, right)]
                return _joined(both)
            case ast.Subscript(value=whole, slice=ast.Slice() as part) if ends := _ends(part):
                return _cut(self._read(whole, module, frame, known), ends)
            case ast.Call(args=[whole]) if isinstance(value, Made) and value.made_by in AS_THEY_ARE:
                return self._read(whole, module, frame, known)
            case ast.Call(args=given) if isinstance(value, Made) and value.made_by == GATHER:
                return self.spread(given, module, frame, known)
            case ast.arg():
                return list(self._collected(node, module, frame, known))
        return [OPEN]

    def spread(
        self,
        given: Iterable[ast.expr],
        module: Module,
        frame: Frame | None,
        known: Known | None = None,
    ) -> list[Sequence]:
        """What elements that are written one by one, some with a star, may be together."""
        known = {} if known is None else known
        parts = []
        for each in given:
            if isinstance(each, ast.Starred):
                parts.append(self._read(each.value, module, frame, known))
            else:
                parts.append([Sequence((Element(each, module, frame),))])
        return _joined(parts)

    def _read(
        self, node: ast.expr, module: Module, frame: Frame | None, known: Known
    ) -> list[Sequence]:
        values = self.evaluate(node, module, frame)
        return [s for value in values for s in self.of(value, known)] or [OPEN]

    def grows(self, node: ast.AST, module: Module) -> bool:
        """Whether something may be added to a list or dict, or replaced: by its name, or unseen."""
        parent = module.table.parents.get(node)
        match parent:
            case ast.Starred() | ast.keyword(arg=None):
                return False
            case ast.Subscript(slice=asked):
                return isinstance(asked, ast.Slice)  # a copy, which has a name itself
            case ast.Assign(targets=[ast.Name(id=name)]):
                return bool(self.index.additions.get(name))
        return True

    def _collected(
        self, arg: ast.arg, module: Module, frame: Frame | None, known: Known
    ) -> Iterator[Sequence]:
        """What ``*args`` of a function collects, by the call of its frame or by all callers."""
        parents = module.table.parents
        function = parents.get(parents.get(arg, arg))
        if not isinstance(function, FUNCTIONS) or function.args.vararg is not arg:
            yield OPEN
            return
        named = len(function.args.posonlyargs) + len(function.args.args)
        method = class_of_method(function, module) is not None and not is_static(function)
        if frame is not None and frame.function is function:
            calls = [(frame.call, frame.module, frame.parent, method)]
            if frame.partial is not None and frame.partial.placed:
                yield OPEN
                return
        else:
            sites = self.tracer.callers(function, module)
            plain = [
                s for s in sites if not s.is_by_another and not (s.partial and s.partial.placed)
            ]
            calls = [(s.call, s.module, None, s.bound) for s in plain]
            if len(calls) < len(sites) or self.tracer.is_in_doubt(function):
                yield OPEN
            elif not calls:
                name = getattr(function, "name", "a lambda")
                yield OPEN._replace(why=f"{arg.arg} is a parameter of {name}{UNCALLED}")
        for call, where, outer, bound in calls:
            first = named - (1 if bound else 0)
            for sequence in self.spread(call.args, where, outer, known):
                yield sequence._replace(elements=sequence.elements[first:])


def _joined(parts: list[list[Sequence]]) -> list[Sequence]:
    """Every way to put one of the alternatives of each part behind one another."""
    result = []
    for number, chosen in enumerate(product(*parts)):
        if number == MAX_ALTERNATIVES:
            return [OPEN]
        elements: tuple[Element, ...] = ()
        last = Sequence()
        for last in chosen:
            elements = (*elements, *last.elements)
            if last.is_open:
                break
        result.append(last._replace(elements=elements))
    return result


def _adds_display(node: ast.expr) -> bool:
    """Whether a tuple or a list is written out in a sum: others are numbers and tensors mostly."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add) and any(map(_adds_display, (node.left, node.right)))
    return isinstance(node, (ast.Tuple, ast.List))


def _cut(whole: list[Sequence], ends: slice) -> list[Sequence]:
    """The part of sequences that ``[a:b]`` takes."""
    result = []
    for sequence in whole:
        if sequence.is_open and min(ends.start or 0, ends.stop or 0) < 0:
            return [OPEN]
        known = ends.stop is not None and ends.stop <= len(sequence.elements)
        is_open = sequence.is_open and not known
        result.append(sequence._replace(elements=sequence.elements[ends], is_open=is_open))
    return result


def _ends(part: ast.Slice) -> slice | None:
    """What a slice takes, if its ends are written out and it skips nothing."""
    try:
        lower, upper = (
            None if e is None else ast.literal_eval(e) for e in (part.lower, part.upper)
        )
    except ValueError:
        return None
    known = all(e is None or isinstance(e, int) for e in (lower, upper))
    return slice(lower, upper) if known and part.step is None else None
