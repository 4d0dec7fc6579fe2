"""Answers to questions that ask one another, in circles too: ``a = b`` and ``b = a`` in a loop.

Questions that ask one another are answered together, from the first of them that was asked: while
one is open, it is taken for what it was found to be in the last round, at first for nothing. Rounds
go on until nothing changes any more; then all of them are answered for good. (The circles are the
strongly connected components of Tarjan, SIAM Journal on Computing 1(2), 1972; the rounds find the
least fixed point.)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import Class, Frame, Unknown, Value, Values

MAX_DEPTH = 300  # nested evaluations; each takes some ten Python frames
MAX_STEPS = 20_000  # evaluations for one question and those that it asks
MAX_ROUNDS = 10  # of a circle; after so many what was found once stays
LAST_ROUND = 60  # of one in which there is something new each time
RECURSION_LIMIT = 12 * MAX_DEPTH + 1000
# What an expression stands for in a frame; what instances of a class have as an attribute;
# what a model made in a frame has of the module inside.
Question = (
    tuple[ast.expr, Frame | None] | tuple[ast.ClassDef, str] | tuple[ast.AST, Frame | None, str]
)
NOTHING: Values = frozenset()
_CUT = -1  # in the place of a depth: the search was cut off, and the answer is not kept
_NONE = MAX_DEPTH + 2  # in the place of a depth: no open question
Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


class Answers:
    """What was found for every question, and the questions that are open."""

    def __init__(self) -> None:
        self.final: dict[Question, Values] = {}
        self._open: dict[Question, int] = {}  # questions not answered yet, and their depth
        self._path: list[Question] = []  # the same, by depth
        # Depth of the first open question whose answer so far went into the one that is made now.
        self._lowest = _NONE
        self._assumed: dict[Question, Values] = {}  # what open questions were in the last round
        self._used: set[Question] = set()  # the open questions that others asked
        self._changed = False  # in this round, one of those
        # Answers of this round into which that of an open question went, which is the second value.
        self._provisional: dict[Question, tuple[Values, Question]] = {}
        self._steps = 0

    def ask(
        self,
        key: Question,
        find: Callable[[], Iterable[Value]],
        node: ast.AST,
        module: Module,
    ) -> Values:
        """The answer to a question, found once."""
        if key in self.final:
            return self.final[key]
        if key in self._open:
            self._used.add(key)
            self._lowest = min(self._lowest, self._open[key])
            return self._assumed.get(key, NOTHING)
        if key in self._provisional:
            values, first = self._provisional[key]
            self._lowest = min(self._lowest, self._depth(first))
            return values
        depth = len(self._open)
        if depth == 0:
            self._begin()
        self._steps += 1
        if depth > MAX_DEPTH or self._steps > MAX_STEPS:
            self._lowest = _CUT  # what is known by now is not all there is
            return frozenset({_too_long(node, module)})
        self._open[key] = depth
        self._path.append(key)
        lowest, self._lowest = self._lowest, _NONE
        changed, self._changed = self._changed, False
        try:
            result = self._settle(key, find, node, module)
        finally:
            del self._open[key]
            self._path.pop()
        if self._lowest < depth:  # part of a circle that began earlier, or cut off
            lowest, changed = min(lowest, self._lowest), changed or self._changed
        if self._lowest == _CUT and (depth == 0 or self._steps > MAX_STEPS):
            if not any(isinstance(value, Unknown) for value in result):
                result |= {_too_long(node, module)}
            self.final[key] = result
        self._lowest, self._changed = lowest, changed
        return result

    def is_final(self, node: ast.expr) -> bool:
        """Whether it is known for good what an expression may be."""
        return (node, None) in self.final

    def _begin(self) -> None:
        self._lowest, self._changed, self._steps = _NONE, False, 0
        self._assumed.clear()
        self._used.clear()
        self._provisional.clear()
        if sys.getrecursionlimit() < RECURSION_LIMIT:
            sys.setrecursionlimit(RECURSION_LIMIT)

    def _settle(
        self, key: Question, find: Callable[[], Iterable[Value]], node: ast.AST, module: Module
    ) -> Values:
        """The answer to an open question: for good, unless one that was opened earlier goes in."""
        depth, before, rounds = self._open[key], len(self._provisional), 0
        while True:
            result = frozenset(find())
            rounds += 1
            if rounds > MAX_ROUNDS:
                result |= self._assumed.get(key, NOTHING)
            if key in self._used and result != self._assumed.get(key, NOTHING):
                self._assumed[key] = result
                self._changed = True
            if self._lowest < depth:
                if self._lowest == _CUT:
                    self._take(before)
                else:
                    self._provisional[key] = result, self._path[self._lowest]
                return result
            circle = self._take(before)
            if rounds > LAST_ROUND:  # nothing tells that there is an end to it
                more = {_too_long(node, module)}
                result |= more
                circle = {each: values | more for each, values in circle.items()}
            if not self._changed or rounds > LAST_ROUND:
                self.final.update(circle)
                self.final[key] = result
                return result
            self._lowest, self._changed = _NONE, False

    def _take(self, before: int) -> dict[Question, Values]:
        """Take away the provisional answers that came after so many others."""
        taken: dict[Question, Values] = {}
        while len(self._provisional) > before:
            key, (values, _) = self._provisional.popitem()
            taken[key] = values
        return taken

    def _depth(self, first: Question) -> int:
        """The depth of an open question; of a closed one, of the open one that went into it."""
        while first not in self._open:
            first = self._provisional[first][1]
        return self._open[first]

    def keep(
        self,
        known: dict[ast.ClassDef, list[Class]],
        cls: Class,
        find: Callable[[], list[Class]],
    ) -> list[Class]:
        """What is found for a class, kept unless it waits for a question that is still open."""
        if cls.node in known:
            return known[cls.node]
        lowest, self._lowest = self._lowest, _NONE
        found = find()
        if self._lowest == _NONE:
            known[cls.node] = found
        self._lowest = min(self._lowest, lowest)
        return found


def _too_long(node: ast.AST, module: Module) -> Unknown:
    return Unknown(node, module, why="the data flow is too long to follow")
