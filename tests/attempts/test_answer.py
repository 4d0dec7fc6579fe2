"""What is said of a search that is over."""

from __future__ import annotations

from pathlib import Path

from fsdp_migrate.attempts.report import Migration, answer_lines, attempt_lines, markdown
from fsdp_migrate.attempts.search import Attempt, Forms, Limits, Search
from fsdp_migrate.verify.compare.gate import AMPLIFIES, Gate, Status
from fsdp_migrate.verify.compare.sites import Accounted
from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.report.model import Report, Verdict

from .reports import report


def over(*reports: Report, stopped: str = "") -> Migration:
    search = Search([0], lambda forms: (), lambda attempt: (), Limits(8, 60.0))
    search.attempts = [Attempt(Forms(), reports=(each,)) for each in reports]
    search.best = next((each for each in search.attempts if each.passes), None)
    search.stopped = stopped
    return Migration(
        programs=("train.py",), titles=("the model made at train.py:3",), search=search, seconds=2.0
    )


def test_an_original_that_crashes_is_the_answer_and_its_traceback_is_shown() -> None:
    ending = Ending(
        end=End.CRASHED,
        folder=Path(),
        logs=Path(),
        seconds=1.0,
        says="KeyError: 'lr'",
        traceback=("train.py:7 in main", "KeyError: 'lr'"),
    )
    crashed = report(Verdict.BEFORE_FAILED, "KeyError: 'lr'", endings={"before": ending})
    migration = over(crashed, stopped="the original crashes: KeyError: 'lr'")
    assert list(attempt_lines(1, migration.search.attempts[0], migration.titles)) == [
        "attempt 1: everything is written out",
        "  UNDECIDED, the original crashes: KeyError: 'lr' (0 s)",
        "    train.py:7 in main",
    ]
    # What the attempt said is not said again.
    assert list(answer_lines(migration)) == [
        "ANSWER: not migrated: the original crashes (1 attempt, 2 s)"
    ]


def test_a_search_that_found_nothing_says_why_it_ended() -> None:
    migration = over(report(Verdict.DIFFERENT), stopped="1 attempt is the limit")
    assert list(answer_lines(migration)) == [
        "ANSWER: not migrated: no attempt trained the same (1 attempt, 2 s)",
        "  the search ended early: 1 attempt is the limit",
    ]


OPEN = Gate(
    key="later",
    title="later steps",
    status=Status.VOID,
    says="11 % had to be allowed",
    hint=AMPLIFIES,
)


def test_a_program_that_amplifies_rounding_is_told_what_to_do() -> None:
    attempt = Attempt(Forms(), reports=(report(Verdict.INCONCLUSIVE, gates=(OPEN,)),))
    lines = list(attempt_lines(1, attempt, ()))
    assert lines[-1] == "  the program amplifies rounding: fewer steps, float64, or a fixed seed"
    assert attempt.report is not None
    assert attempt.report.amplifies_rounding


def test_what_the_rewriter_did_not_see_is_said_beside_a_pass() -> None:
    seen = Accounted((), (), problems=("a frame without a file",))
    migration = over(report(accounted=seen))
    said = "  but: not every place that uses FSDP1 could be noted: a frame without a file"
    assert said in answer_lines(migration)
    assert "- But: " in markdown(migration)
    assert "but: " not in "\n".join(answer_lines(over(report())))
