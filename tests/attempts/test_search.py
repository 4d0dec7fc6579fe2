"""The search for what can be taken: how much it leaves, and in how many attempts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsdp_migrate.attempts.search import (
    OF_THE_RUN,
    Attempt,
    Forms,
    Limits,
    Other,
    Search,
    Suspect,
)
from fsdp_migrate.verify.report.model import Report, Verdict
from tests.attempts.reports import report

NO_LIMIT = Limits(10_000, float("inf"))
Trainer = Callable[[Forms], tuple[Report, ...]]


def wrong_with(*wrong: Collection[int]) -> Trainer:
    """Programs that train otherwise wherever all units of one of these sets are taken."""

    def train(forms: Forms) -> tuple[Report, ...]:
        found = [units for units in wrong if forms.left.isdisjoint(units)]
        if found:
            return (report(Verdict.DIFFERENT, f"with {sorted(found[0])}"),)
        return (report(),)

    return train


def search(
    units: int,
    train: Trainer,
    suspect: Callable[[Attempt], Sequence[int]] = lambda attempt: (),
    limits: Limits = NO_LIMIT,
) -> Search:
    found = Search(
        units=range(units),
        train=train,
        suspect=lambda attempt: [Suspect(unit, "seen") for unit in suspect(attempt)],
        limits=limits,
    )
    found.run()
    return found


def tried(found: Search) -> list[list[int]]:
    return [sorted(attempt.forms.left) for attempt in found.attempts]


def left(found: Search) -> list[int]:
    assert found.best is not None
    return sorted(found.best.forms.left)


def test_what_trains_the_same_takes_one_attempt() -> None:
    found = search(3, wrong_with())
    assert tried(found) == [[]]
    assert left(found) == []


def test_a_right_suspect_takes_two() -> None:
    found = search(5, wrong_with({3}), lambda attempt: [3, 1])
    assert tried(found) == [[], [3]]
    assert left(found) == [3]


def test_a_suspect_without_which_it_fails_alike_is_taken_again() -> None:
    found = search(5, wrong_with({3}), lambda attempt: [1, 3])
    assert tried(found) == [[], [1], [3]]
    assert left(found) == [3]


def test_two_defects_are_left_one_after_the_other() -> None:
    def suspect(attempt: Attempt) -> list[int]:
        assert attempt.report is not None
        return [1] if attempt.report.says == "with [1]" else [4]

    found = search(5, wrong_with({1}, {4}), suspect)
    assert tried(found)[:3] == [[], [1], [1, 4]]
    assert left(found) == [1, 4]


def test_without_evidence_halves_are_tried() -> None:
    found = search(8, wrong_with({6}))
    assert left(found) == [6]
    assert len([a for a in found.attempts if a.reports]) <= 7


def test_the_original_itself_is_not_trained_once_more() -> None:
    found = search(1, wrong_with({0}), lambda attempt: [0])
    assert left(found) == [0]
    assert [len(attempt.reports) for attempt in found.attempts] == [1, 0]


@given(st.lists(st.frozensets(st.integers(0, 6), min_size=1, max_size=3), max_size=4), st.data())
def test_what_is_left_passes_and_none_of_it_could_be_taken(
    wrong: list[frozenset[int]], data: st.DataObject
) -> None:
    guesses = data.draw(st.lists(st.integers(0, 6), max_size=4))
    found = search(7, wrong_with(*wrong), lambda attempt: guesses)
    assert not found.stopped
    assert found.best is not None
    chosen = found.best.forms.left
    assert all(chosen & units for units in wrong)
    for unit in chosen:
        assert any(not (chosen - {unit}) & units for units in wrong)
    everything = tried(found)
    assert len(everything) == len(set(map(tuple, everything)))


@pytest.mark.parametrize(
    "verdict",
    [Verdict.BEFORE_FAILED, Verdict.BEFORE_HUNG, Verdict.UNRECORDED, Verdict.INCONCLUSIVE],
)
def test_what_the_original_does_alone_ends_the_search(verdict: Verdict) -> None:
    found = search(3, lambda forms: (report(verdict, "it does not run"),))
    assert tried(found) == [[]]
    assert found.best is None
    assert "it does not run" in found.stopped


def test_an_open_question_that_points_at_a_unit_goes_on() -> None:
    def train(forms: Forms) -> tuple[Report, ...]:
        return (report(Verdict.SAME if 2 in forms.left else Verdict.INCONCLUSIVE),)

    assert left(search(3, train, lambda attempt: [2])) == [2]


def test_the_number_of_attempts_is_kept() -> None:
    found = search(64, wrong_with({40}), limits=Limits(3, float("inf")))
    assert len([a for a in found.attempts if a.reports]) == 3
    assert "3 attempts is the limit" in found.stopped


def test_no_attempt_begins_that_the_budget_has_no_time_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("fsdp_migrate.attempts.search.monotonic", lambda: now[0])

    def train(forms: Forms) -> tuple[Report, ...]:
        now[0] += 10
        return wrong_with({40})(forms)

    found = search(64, train, limits=Limits(99, 45.0))
    assert "budget" in found.stopped
    assert len(found.attempts) == 4


def test_an_interruption_keeps_what_passed() -> None:
    says = {(): "one", (1,): "other"}

    def train(forms: Forms) -> tuple[Report, ...]:
        if forms.left == {0}:
            raise KeyboardInterrupt
        said = says.get(tuple(forms.left))
        return (report(Verdict.DIFFERENT, said) if said else report(),)

    suspects = iter((1, 0))
    found = Search(range(3), train, lambda attempt: [Suspect(next(suspects), "")], NO_LIMIT)
    with pytest.raises(KeyboardInterrupt):
        found.run()
    assert left(found) == [0, 1]


# --- what can be written in several forms ---------------------------------------------------------


def other_form(unit: int, number: int) -> Other:
    """The form of a unit that comes after so many."""
    passed_over = tuple(((Path("train.py"), (unit, 0)), f"form {n}") for n in range(number))
    return Other(unit, f"form {number}", passed_over)


def had(forms: Forms, unit: int) -> int:
    """How many forms of a unit are passed over."""
    return sum(len(other.passed_over) for other in forms.taken if other.unit == unit)


def forms_of(counts: Sequence[int]) -> Callable[[Forms, Suspect], Iterator[Forms]]:
    """So many further forms of each unit, one after the other."""

    def further(forms: Forms, suspect: Suspect) -> Iterator[Forms]:
        for number in range(had(forms, suspect.unit), counts[suspect.unit]):
            yield forms.taking(other_form(suspect.unit, number + 1))

    return further


def taking(train: Trainer, suspects: Sequence[Suspect], counts: Sequence[int]) -> Search:
    found = Search(
        units=range(len(counts)),
        train=train,
        suspect=lambda attempt: suspects,
        limits=NO_LIMIT,
        further=forms_of(counts),
    )
    found.run()
    return found


def forms_tried(found: Search) -> list[tuple[list[int], list[int]]]:
    """The units of each attempt that have other forms, as often as they have, and those left."""
    return [
        ([o.unit for o in sorted(a.forms.taken) for _ in o.passed_over], sorted(a.forms.left))
        for a in found.attempts
    ]


def needs(unit: int, forms: int) -> Trainer:
    """Programs that train the same once a unit has so many other forms, or is left."""

    def train(tried: Forms) -> tuple[Report, ...]:
        good = had(tried, unit) >= forms or unit in tried.left
        return (report() if good else report(Verdict.DIFFERENT, "other"),)

    return train


def test_another_form_comes_before_leaving() -> None:
    found = taking(needs(1, 1), [Suspect(1, "seen")], [1, 1, 1])
    assert forms_tried(found) == [([], []), ([1], [])]
    assert found.best is found.attempts[1]


def test_a_third_form_comes_after_the_second() -> None:
    found = taking(needs(1, 2), [Suspect(1, "seen")], [1, 2, 1])
    assert forms_tried(found) == [([], []), ([1], []), ([1, 1], [])]
    assert found.best is found.attempts[2]


def test_what_fails_alike_in_all_its_forms_is_left() -> None:
    found = taking(wrong_with({1}), [Suspect(1, "seen")], [1, 2, 1])
    assert forms_tried(found) == [([], []), ([1], []), ([1, 1], []), ([], [1])]


def test_what_has_no_other_form_is_left_at_once() -> None:
    found = taking(wrong_with({0}), [Suspect(0, "seen")], [0, 1, 1])
    assert forms_tried(found) == [([], []), ([], [0])]


def test_another_form_that_fails_otherwise_is_left_after_all() -> None:
    def train(forms: Forms) -> tuple[Report, ...]:
        says = "crash" if forms.taken else "" if 1 in forms.left else "other"
        return (report(Verdict.DIFFERENT, says) if says else report(),)

    found = taking(train, [Suspect(1, "seen")], [1, 1, 1])
    assert forms_tried(found) == [([], []), ([1], []), ([], [1])]
    assert left(found) == [1]


def test_another_form_in_vain_is_taken_back() -> None:
    def train(forms: Forms) -> tuple[Report, ...]:
        if 2 in forms.left:
            return (report(),)
        return (report(Verdict.DIFFERENT, f"another {sorted(forms.taken)}"),)

    suspects = iter([[Suspect(1, "seen")], [Suspect(2, "seen")]])
    found = Search(range(3), train, lambda a: next(suspects), NO_LIMIT, further=forms_of([0, 1, 0]))
    found.run()
    assert forms_tried(found)[-1] == ([], [2])
    assert found.best is not None
    assert not found.best.forms.taken


def test_of_two_forms_in_one_unit_the_one_in_vain_is_taken_back() -> None:
    places = [((Path("train.py"), (line, 0)), "plain") for line in (1, 2)]
    one, two = Other(0, "in vain", (places[0],)), Other(0, "needed", (places[1],))

    def train(forms: Forms) -> tuple[Report, ...]:
        if two in forms.taken:
            return (report(),)
        return (report(Verdict.DIFFERENT, f"another {sorted(forms.taken)}"),)

    def further(forms: Forms, suspect: Suspect) -> Iterator[Forms]:
        yield forms.taking(two if one in forms.taken else one)

    found = Search([0], train, lambda a: [Suspect(0, "seen")], NO_LIMIT, further=further)
    found.run()
    assert found.best is not None
    assert found.best.forms == Forms(frozenset({two}))


# -- what a run of the original has shown ----------------------------------------------------------


def fact(number: int) -> Other:
    place = (Path("train.py"), (number, 0))
    return Other(OF_THE_RUN, f"fact {number}", ((place, "as the run showed it"),))


def resting_on(
    facts: int,
    train: Trainer,
    suspects: Sequence[int] = (),
    alike: Callable[[Forms, Forms], bool] = lambda one, other: False,
) -> Search:
    """A search over two units, of which something rests on so many facts."""
    found = Search(
        units=range(2),
        train=train,
        suspect=lambda attempt: [Suspect(unit, "seen") for unit in suspects],
        limits=NO_LIMIT,
        on_code=lambda: Forms(frozenset(map(fact, range(facts)))),
        alike=alike,
    )
    found.run()
    return found


def believed(found: Search) -> list[list[str]]:
    """What is no longer believed in each attempt."""
    return [[other.what for other in sorted(a.forms.taken)] for a in found.attempts]


def wrong_fact(*numbers: int) -> Trainer:
    wrong = set(map(fact, numbers))

    def train(forms: Forms) -> tuple[Report, ...]:
        return (report() if wrong <= forms.taken else report(Verdict.DIFFERENT, "other losses"),)

    return train


def test_where_facts_do_not_hold_the_code_alone_decides() -> None:
    found = resting_on(1, wrong_fact(0), [1])
    assert believed(found) == [[], ["fact 0"]]  # before anything that is suspected
    assert left(found) == []
    assert found.attempts[1].why.startswith("seen; what the run showed")


def test_the_code_alone_decides_where_nothing_is_suspected() -> None:
    assert resting_on(1, wrong_fact(0)).attempts[1].why.startswith("what the run showed")


def test_facts_that_did_no_harm_are_believed_again() -> None:
    found = resting_on(4, wrong_fact(2))
    assert found.best is not None
    assert found.best.forms.taken == {fact(2)}
    assert len(found.attempts) <= 5


def test_what_fails_whatever_the_run_showed_has_another_cause() -> None:
    found = resting_on(2, wrong_with({1}), [1])
    assert left(found) == [1]
    assert found.best is not None
    assert not found.best.forms.taken
    assert len(found.attempts) == 3


def test_what_is_right_as_the_run_showed_it_is_not_trained_otherwise() -> None:
    assert len(resting_on(3, wrong_with()).attempts) == 1


def test_facts_that_change_no_code_are_not_tried() -> None:
    found = resting_on(2, wrong_with({1}), [1], lambda one, other: one.left == other.left)
    assert tried(found) == [[], [1]]


def test_the_code_alone_proves_nothing_where_it_leaves_every_model() -> None:
    def train(forms: Forms) -> tuple[Report, ...]:
        if forms.taken:
            return ()  # the models were left, and the program is the original
        return (report() if 1 in forms.left else report(Verdict.DIFFERENT, "other losses"),)

    found = resting_on(1, train, [1])
    assert left(found) == [1]
    assert found.best is not None
    assert found.best.reports
