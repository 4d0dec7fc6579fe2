"""Answers to questions that ask one another, in circles too: ``a = b`` and ``b = a`` in a loop.

Questions that ask one another are answered together, from the first of them that was asked: while
one is open, it is taken for what is found of it so far, at first for nothing. Who has asked for it
is noted, and looks again when more is found, and where he finds something else, those who asked
him; all others keep what they have. Once nothing changes any more, all are answered for good. (The
circles are the strongly connected components of Tarjan, SIAM Journal on Computing 1(2), 1972; who
looks again is told as in the top-down solver of Le Charlier and Van Hentenryck, 1992. It finds the
least fixed point.)

That there is nothing is no answer while something is open still: it is said when all is found that
does not rest on it. So it does not matter where a circle is entered, nor who asks first.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from fsdp_migrate.analysis.module import Module
from fsdp_migrate.analysis.values import TOO_LONG, Class, Frame, Unknown, Value, Values

MAX_DEPTH = 300  # nested evaluations; each takes some ten Python frames
MAX_STEPS = 20_000  # times that the questions of one circle are looked at again
MAX_ROUNDS = 10  # of a question; after so many what was found once stays
LAST_ROUND = 60  # of one for which there is something new each time
MAX_IN_VAIN = 200_000  # looks, in all, for answers that are cut off and so not kept
AT_LEAST = 2_000  # of these, for each question that is asked from outside
RECURSION_LIMIT = 13 * MAX_DEPTH + 1000
# What an expression stands for in a frame; what instances of a class have as an attribute;
# what a model made in a frame has of the module inside; who calls a function.
Question = (
    tuple[ast.expr, Frame | None]
    | tuple[ast.ClassDef, str]
    | tuple[ast.AST, Frame | None, str]
    | tuple[str, ast.AST]
)
NOTHING: Values = frozenset()
_CUT = -1  # in the place of a depth: the search was cut off, and the answer is not kept
_NONE = MAX_DEPTH + 2  # in the place of a depth: no open question


class Answers:
    """What was found for every question, and the questions that are open."""

    def __init__(self) -> None:
        self.final: dict[Question, Any] = {}
        self._open: dict[Question, int] = {}  # questions not answered yet, and their depth
        self._path: list[Question] = []  # the same, by depth
        # Depth of the first open question whose answer so far went into the one that is made now.
        self._lowest = _NONE
        self._found: dict[Question, Any] = {}  # so far, of questions that are not answered for good
        self._closed: list[Question] = []  # those of them that wait for one that is open,
        self._first: dict[Question, Question] = {}  # and for which
        self._valid: set[Question] = set()  # those of which nothing changed that they asked for
        self._readers: dict[Question, set[Question]] = defaultdict(set)
        self._how: dict[Question, tuple[Any, ast.AST, Module, Any]] = {}  # it is found
        self._times: dict[Question, int] = {}  # that a question was looked at
        self._seen: dict[Question, Any] = {}  # in its later rounds
        self._again = 0  # times that any of the circle was looked at again
        self._stays = False  # what is found in a circle is not taken back any more
        self._spent = False  # a circle takes too long: nothing more is looked at for it
        self.in_doubt: set[Question] = set()  # those with answers to which more may belong
        self._in_vain = 0  # looks that have led to no answer that is kept
        self._blank = False  # nothing is found so far of something that was asked for
        # What stands for nothing in questions that have not said so for this; those that may.
        self._waiting: dict[Question, set[Any]] = {}
        self._released: dict[Question, set[Any]] = {}

    def ask(
        self,
        key: Question,
        find: Callable[[], Iterable[Any]],
        node: ast.AST,
        module: Module,
        gather: Callable[..., Any] = frozenset,
    ) -> Any:
        """The answer to a question, found once.

        Args:
            gather: makes an answer of what is found: a set of values, or a tuple.
        """
        if key in self.final:
            return self.final[key]
        if key in self._open or key in self._valid:
            at = self._open[key] if key in self._open else self._depth(key)
            self._lowest = at if at < self._lowest else self._lowest
            found = self._found[key] if key in self._found else gather()
            # Who was told what is found of a question so far looks again when more is.
            self._readers[key].add(self._path[-1])
            self._blank = self._blank or not found
            return found
        depth = len(self._open)
        if depth == 0:
            self._begin()
        if depth > MAX_DEPTH:
            self._lowest = _CUT  # what is known by now is not all there is
        if depth > MAX_DEPTH or self._spent:
            return frozenset({_too_long(node, module)}) if gather is frozenset else gather()
        self._how[key] = find, node, module, gather
        result = self._answer(key, depth)
        if self._path and key not in self.final:
            self._readers[key].add(self._path[-1])
            self._blank = self._blank or not result
        return result

    def _answer(self, key: Question, depth: int) -> Any:
        """Open a question, and answer it."""
        before = len(self._closed)
        # One that was closed waits for the same as before, whatever it asks for now: what it rests
        # on may be among those that were closed with it, and look again later.
        waits = self._depth(key) if key in self._first else _NONE
        self._open[key] = depth
        self._path.append(key)
        lowest, self._lowest = self._lowest, _NONE
        blank, self._blank = self._blank, False
        try:
            result = self._settle(key, waits, before)
        except BaseException:
            self._forget([key, *self._taken(before)])
            raise
        finally:
            del self._open[key]
            self._path.pop()
        # What is answered for good rests on nothing that is open.
        if self._lowest >= depth or self._lowest > lowest:
            self._lowest = lowest
        self._blank = blank
        return result

    @property
    def is_asked(self) -> bool:
        """Whether a question is open."""
        return bool(self._path)

    def is_final(self, node: ast.expr) -> bool:
        """Whether it is known for good what an expression may be."""
        return (node, None) in self.final

    def if_nothing(self, *others: Value) -> list[Value]:
        """What stands for nothing that was found: not before it is sure that this is so. Those of
        a circle say so at once, and keep to it whatever the others hand on to them."""
        asking = self._path[-1] if self._path else None
        if not self._blank or asking is None or asking in self._released:
            return list(others)
        self._waiting.setdefault(asking, set()).update(others)
        return []

    def _begin(self) -> None:
        self._lowest, self._blank, self._again = _NONE, False, 0
        self._stays = self._spent = False
        self._in_vain = min(self._in_vain, MAX_IN_VAIN - AT_LEAST)
        if self._how or self._readers:
            self._forget([*self._how, *self._readers])
        self._closed.clear()
        if sys.getrecursionlimit() < RECURSION_LIMIT:
            sys.setrecursionlimit(RECURSION_LIMIT)

    def _settle(self, key: Question, lowest: int, before: int) -> Any:
        """The answer to an open question: for good, unless one that was opened earlier goes in."""
        _, node, module, gather = self._how[key]
        depth = self._open[key]
        again, stays = self._again, self._stays
        while True:
            result = self._look(key)
            lowest = self._lowest = lowest if lowest < self._lowest else self._lowest
            is_alone = self._times[key] == 1 and len(self._closed) == before
            if lowest == _NONE and is_alone and not self._spent:  # as most
                self.final[key] = result
                self._in_vain -= 1
                self._valid.discard(key)
                for known in (self._how, self._found, self._times):
                    del known[key]
                return result
            while depth <= lowest and self._look_again(before):
                lowest = self._lowest = min(lowest, self._lowest)
            if self._spent and lowest == _CUT and depth > 0:
                lowest = self._lowest = 0  # it waits for the first question, and stays in doubt
            if lowest == _CUT:
                self._forget([key, *self._taken(before)])
                if depth == 0:
                    is_sure = gather is not frozenset or any(isinstance(v, Unknown) for v in result)
                    more = NOTHING if is_sure else {_too_long(node, module)}
                    result = self.final[key] = result if is_sure else result | more
                    self.in_doubt.add(key)
                return result
            if key not in self._valid and not self._spent:
                continue
            if lowest < depth:
                self._closed.append(key)
                self._first[key] = self._path[lowest]
                return result
            circle = dict.fromkeys([key, *self._taken(before)])
            if not self._spent and self._release(circle):
                self._closed += [each for each in circle if each is not key]
                continue
            more = {_too_long(node, module)} if self._spent else NOTHING
            for each in circle:
                if each in self._found and (each in self._valid or self._spent):
                    found = self._found[each]
                    self._in_vain -= self._times.get(each, 0)
                    self.final[each] = found | more if isinstance(found, frozenset) else found
                    self.in_doubt |= {each} if more else set()
            self._forget(circle)
            self._again, self._stays, self._spent = again, stays, False
            return self.final[key]

    def _look_again(self, before: int) -> bool:
        """Answer those again that were closed after so many others, and of which something changed
        that they asked for; whether there were any."""
        closed = self._closed[before:]
        changed = [each for each in closed if each not in self._valid and each in self._how]
        for each in changed:
            if each not in self._valid and each in self._how and not self._spent:
                self._answer(each, len(self._open))
        return bool(changed) and not self._spent

    def _look(self, key: Question) -> Any:
        """What is found for an open question by what is known now."""
        self._lowest, self._blank = _NONE, False
        if key in self._valid:
            return self._found[key]
        self._valid.add(key)
        if key in self._waiting:
            del self._waiting[key]
        find, _, _, gather = self._how[key]
        kept: Iterable[Any] = ()
        if key in self._released:
            kept = self._released[key]
        result = gather([*find(), *kept] if kept else find())
        before = self._found[key] if key in self._found else gather()
        times = self._times[key] = self._times[key] + 1 if key in self._times else 1
        if times > MAX_ROUNDS // 2:
            seen = self._seen[key] = gather(dict.fromkeys([*self._seen.get(key, before), *result]))
            if times > MAX_ROUNDS and not self._stays:
                self._stay()
            result = seen if self._stays else result
        self._again += times > 1
        self._in_vain += 1
        is_long = times > LAST_ROUND or self._again > MAX_STEPS or self._in_vain > MAX_IN_VAIN
        self._spent = self._spent or is_long
        if result == before:
            result = before  # the same object
        elif key in self._readers:
            self._ask_again(key)
        self._found[key] = result
        return result

    def _stay(self) -> None:
        """From here on, take nothing back in this circle that was found in its later rounds."""
        self._stays = True
        for key, seen in self._seen.items():
            if self._found.get(key, seen) != seen:
                self._found[key] = seen
                self._ask_again(key)

    def _ask_again(self, key: Question) -> None:
        """Have all look again that asked for a question."""
        self._valid -= self._readers.pop(key, set())

    def _release(self, circle: Iterable[Question]) -> bool:
        """Whether some of a circle waited to say that there is nothing: now they may."""
        waiting = {key: self._waiting.pop(key) for key in circle if key in self._waiting}
        for key, others in waiting.items():
            self._valid.discard(key)  # it must look again, whatever it read
            self._released.setdefault(key, set()).update(others)
        return bool(waiting)

    def _taken(self, before: int) -> list[Question]:
        """Take away the questions that were closed after so many others."""
        taken = self._closed[before:]
        del self._closed[before:]
        return taken

    def _forget(self, questions: Iterable[Question]) -> None:
        """Of what is answered for good, or must be asked anew, nothing else is needed."""
        asked = set(questions)
        self._valid -= asked
        kept: list[dict[Question, Any]] = [self._found, self._first, self._readers, self._how]
        for known in (*kept, self._times, self._seen, self._waiting, self._released):
            for each in known.keys() & asked:
                del known[each]

    def _depth(self, key: Question) -> int:
        """The depth of an open question; of a closed one, of the open one that went into it."""
        while key not in self._open:
            key = self._first[key]
        return self._open[key]

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
        if self._lowest == _NONE and not self._spent:
            known[cls.node] = found
        self._lowest = min(self._lowest, lowest)
        return found


def _too_long(node: ast.AST, module: Module) -> Unknown:
    return Unknown(node, module, why=TOO_LONG)
