"""Answers to questions that ask one another, in circles too: ``a = b`` and ``b = a`` in a loop.

A question that is asked again while it is open gets an empty answer. What follows from that is kept
only for as long as the question stays open, since its answer may still grow.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, TypeVar

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Frame, Unknown, Value, Values

MAX_DEPTH = 300  # nested evaluations; each takes some ten Python frames
MAX_STEPS = 2_000  # evaluations for one question; in published code none took 500
RECURSION_LIMIT = 12 * MAX_DEPTH + 1000
# What an expression stands for in a frame; what instances of a class have as an attribute.
Question = tuple[ast.expr, Frame | None] | tuple[ast.ClassDef, str]
_CUT = 1 << (MAX_DEPTH + 2)  # among ``waits``: the search was cut off, and the answer is not kept
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class _Provisional(NamedTuple):
    """An answer that took open questions for empty; it counts as long as those stay open.

    The deepest of them is closed first, so that it is the one to look at.
    """

    values: Values
    waits: int  # bit n: the active question of depth n
    depth: int  # of the deepest of them
    activation: int  # of that one: the same question may be asked again later


class Answers:
    """What was found for every question, and the questions that are open."""

    def __init__(self) -> None:
        self.final: dict[Question, Values] = {}
        self._active: dict[Question, int] = {}  # questions not answered yet, and their depth
        self._waits = 0  # bit n: the answer made now waits for the active question of depth n
        self._provisional: dict[Question, _Provisional] = {}
        self._activations: list[int] = []  # of the active questions, by depth
        self._steps = 0

    def ask(
        self,
        key: Question,
        find: Callable[[], Iterable[Value]],
        node: ast.AST,
        module: Module,
    ) -> Values:
        """The answer to a question, found once; it is empty while it is being looked for."""
        if key in self.final:
            return self.final[key]
        if key in self._active:
            self._waits |= 1 << self._active[key]
            return frozenset()
        known = self._provisional.get(key)
        if known is not None and self._is_open(known):
            self._waits |= known.waits
            return known.values
        depth = len(self._active)
        if depth == 0:
            self._steps = self._waits = 0
            self._provisional.clear()
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS:
            self._waits |= _CUT  # what is known by now is not all there is
            return frozenset({Unknown(node, module, why="the data flow is too long to follow")})
        if depth == 0 and sys.getrecursionlimit() < RECURSION_LIMIT:
            sys.setrecursionlimit(RECURSION_LIMIT)
        self._active[key] = depth
        self._activations.append(self._steps)
        outer, self._waits = self._waits, 0
        try:
            result = frozenset(find())
        finally:
            del self._active[key]
            self._activations.pop()
            waits = self._waits & ~(1 << depth)
            self._waits = outer | waits
        if not waits or depth == 0:
            self.final[key] = result
        elif not waits & _CUT:
            deepest = waits.bit_length() - 1
            self._provisional[key] = _Provisional(
                result, waits, deepest, self._activations[deepest]
            )
        return result

    def _is_open(self, known: _Provisional) -> bool:
        """Whether the questions that an answer took for empty are still open."""
        activations = self._activations
        return known.depth < len(activations) and activations[known.depth] == known.activation

    def keep(
        self,
        known: dict[ast.ClassDef, list[Class]],
        cls: Class,
        find: Callable[[], list[Class]],
    ) -> list[Class]:
        """What is found for a class, kept unless it waits for a question that is still open."""
        if cls.node in known:
            return known[cls.node]
        outer, self._waits = self._waits, 0
        found = find()
        if not self._waits:
            known[cls.node] = found
        self._waits |= outer
        return found
