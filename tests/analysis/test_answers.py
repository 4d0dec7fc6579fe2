"""Questions that ask one another get the same answers in whatever order they are asked."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies

from fsdp_migrate.analysis.tracing import answers
from fsdp_migrate.analysis.tracing.answers import Answers

# What a question has of its own, and the questions whose values it has as well: all of them, or
# only those that are even, as an attribute is found only of some values.
Rule = tuple[set[int], set[int], set[int]]
MODULE: Any = SimpleNamespace(number=0)
NUMBERS = strategies.sets(strategies.integers(0, 7), max_size=3)
SYSTEMS = strategies.dictionaries(
    strategies.integers(0, 7), strategies.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=1
)


class System:
    """Rules, and how often each was looked at."""

    def __init__(self, rules: Mapping[int, Rule]) -> None:
        self.rules = rules
        self.answers: Any = Answers()
        self.looked: dict[int, int] = dict.fromkeys(range(8), 0)

    def ask(self, question: int) -> frozenset[Any]:
        return frozenset(
            self.answers.ask(question, lambda: self._find(question), ast.Pass(), MODULE)
        )

    def _find(self, question: int) -> Iterable[int]:
        self.looked[question] += 1
        own, every, even = self.rules.get(question, (set(), set(), set()))
        yield from own
        for other in sorted(every):
            yield from self.ask(other)
        for other in sorted(even):
            found = self.ask(other)  # of what is not known, nobody knows whether it is even
            yield from (v for v in found if not isinstance(v, int) or v % 2 == 0)


def least(rules: Mapping[int, Rule]) -> dict[int, set[int]]:
    """The least sets that all rules hold for."""
    found: dict[int, set[int]] = {n: set() for n in range(8)}
    while True:
        before = {n: set(values) for n, values in found.items()}
        for n, (own, every, even) in rules.items():
            found[n] |= own
            found[n] |= {value for other in every for value in found[other]}
            found[n] |= {value for other in even for value in found[other] if value % 2 == 0}
        if found == before:
            return found


@settings(max_examples=300, deadline=None)
@given(SYSTEMS, strategies.permutations(range(8)))
def test_answers_are_the_least_fixed_point_in_every_order(
    rules: dict[int, Rule], order: list[int]
) -> None:
    system = System(rules)
    assert {n: set(system.ask(n)) for n in order} == least(rules)


@settings(max_examples=300, deadline=None)
@given(SYSTEMS, NUMBERS, strategies.permutations(range(8)))
@example({1: (set(), set(), {6}), 6: (set(), set(), {1})}, {1, 6}, [6, *range(6), 7])  # two at once
def test_that_there_is_nothing_is_said_alike_in_every_order(
    rules: dict[int, Rule], empty: set[int], order: list[int]
) -> None:
    """Where something stands for nothing, it may be handed on and keep a circle going by itself."""

    def answers_in(order: Iterable[int]) -> dict[int, frozenset[Any]]:
        asked: Any = Answers()

        def ask(question: int) -> frozenset[Any]:
            found = asked.ask(question, lambda: find(question), ast.Pass(), MODULE)
            return frozenset(found)

        def find(question: int) -> Iterable[Any]:
            own, every, even = rules.get(question, (set(), set(), set()))
            found: list[Any] = list(own)
            for other in sorted(every | even):
                found += ask(other)
            if found or question not in empty:
                return found
            return asked.if_nothing(f"nothing {question}")

        return {question: ask(question) for question in order}

    assert answers_in(order) == answers_in(range(8))


def test_a_circle_is_answered_once_for_all_in_it() -> None:
    circle: dict[int, Rule] = {n: ({n}, {(n + 1) % 8}, set()) for n in range(8)}
    system = System(circle)
    assert system.ask(0) == frozenset(range(8))
    looked = dict(system.looked)
    assert all(system.ask(n) == frozenset(range(8)) for n in range(8))
    assert system.looked == looked


def test_questions_without_circles_are_looked_at_once() -> None:
    system = System({n: ({n}, set(range(n)), set()) for n in range(8)})
    assert system.ask(7) == frozenset(range(8))
    assert set(system.looked.values()) == {1}


def test_what_never_settles_ends_and_keeps_what_was_found() -> None:
    """Rules that take away what they had: no fixed point."""

    asked: Any = Answers()

    def ask(question: str) -> frozenset[Any]:
        return frozenset(asked.ask(question, lambda: find(question), ast.Pass(), MODULE))

    def find(question: str) -> Iterable[int]:
        if question == "a":
            return () if ask("b") else (1,)
        return ask("a")

    assert ask("a") == {1}
    assert ask("b") == {1}


@settings(max_examples=150, deadline=None)
@given(SYSTEMS, strategies.permutations(range(8)), strategies.integers(0, 5))
def test_what_is_cut_off_is_never_kept_as_the_whole(
    rules: dict[int, Rule], order: list[int], depth: int
) -> None:
    """An answer says that it is too long to follow, or it is what no limit would have given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "MAX_DEPTH", depth)
        system = System(rules)
        found = {n: system.ask(n) for n in order}
        again = {n: system.ask(n) for n in reversed(order)}
    assert again == found
    whole = least(rules)
    for number, values in found.items():
        known = {value for value in values if isinstance(value, int)}
        assert known <= whole[number]
        assert known == whole[number] or len(known) < len(values)


@settings(max_examples=150, deadline=None)
@given(
    SYSTEMS,
    strategies.permutations(range(8)),
    strategies.integers(0, 3),
    strategies.integers(1, 12),
)
def test_what_is_kept_of_searches_in_vain_is_in_doubt(
    rules: dict[int, Rule], order: list[int], depth: int, looks: int
) -> None:
    """After many looks for nothing, what was found so far is kept, and says that it may be more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers, "MAX_DEPTH", depth)
        patch.setattr(answers, "MAX_IN_VAIN", looks)
        patch.setattr(answers, "AT_LEAST", 1)
        system = System(rules)
        found = {n: system.ask(n) for n in order}
        looked = dict(system.looked)
        again = {n: system.ask(n) for n in reversed(order)}
    assert again == found
    assert system.looked == looked
    whole = least(rules)
    for number, values in found.items():
        known = {value for value in values if isinstance(value, int)}
        assert known <= whole[number]
        assert known == whole[number] or len(known) < len(values)


def test_too_many_questions_end_in_an_unknown_value(monkeypatch: Any) -> None:
    monkeypatch.setattr(answers, "MAX_STEPS", 4)
    system = System({n: ({n}, {(n + 1) % 8}, set()) for n in range(8)})
    found = [system.ask(n) for n in range(8)]
    assert all(any("too long" in str(getattr(v, "why", "")) for v in each) for each in found)
    looked = dict(system.looked)
    assert [system.ask(n) for n in range(8)] == found
    assert system.looked == looked


def test_a_circle_that_is_too_long_is_no_limit_to_what_asks_it(monkeypatch: Any) -> None:
    """A limit is one of a circle, not of all that a question leads to."""
    monkeypatch.setattr(answers, "MAX_STEPS", 2)
    chain: dict[int, Rule] = {n: ({n}, {n + 1}, set()) for n in range(3)}
    circle: dict[int, Rule] = {n: ({n}, {n + 1 if n < 6 else 3}, set()) for n in range(3, 7)}
    apart: dict[int, Rule] = {7: ({7}, set(), set())}
    system = System({**chain, **circle, **apart, 0: ({0}, {1, 7}, set())})
    found = system.ask(0)
    assert {0, 1, 2, 7} < found
    assert system.ask(7) == {7}
    assert any("too long" in v.why for v in system.ask(4) if not isinstance(v, int))


def test_a_circle_that_finds_something_new_each_time_ends() -> None:
    asked: Any = Answers()
    looked: list[str] = []

    def ask(question: str) -> frozenset[Any]:
        return frozenset(asked.ask(question, lambda: find(question), ast.Pass(), MODULE))

    def find(question: str) -> Iterable[int]:
        looked.append(question)
        return (0, *(n + 1 for n in ask("b" if question == "a" else "a") if isinstance(n, int)))

    found = ask("a")
    assert len(looked) < 3 * answers.LAST_ROUND
    assert any("too long" in value.why for value in found if not isinstance(value, int))
    assert ask("a") == found
