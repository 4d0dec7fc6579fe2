"""Which units a failed attempt points at, and in which order."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from fsdp_migrate.attempts.suspects import Suspects
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.observed import Made, Observed, Span, Use
from fsdp_migrate.verify.compare.sites import KnownSite
from fsdp_migrate.verify.launch.ending import End, Ending, RankTrace
from fsdp_migrate.verify.report.model import Verdict
from tests.attempts.reports import report

BEFORE = "a = FSDP(one)\nx = 1\ny = 2\nz = 3\nb = FSDP(two)\nb.clip_grad_norm_(1.0)\n"
AFTER = "import helper\n\na = shard(one)\nx = 1\ny = 2\nz = 3\nb = shard(two)\nclip(b, 1.0)\n"


def site(code: str, line: int) -> KnownSite:
    return KnownSite("train.py", Span(line, 0, line, 9), code, "FSDP()", "FSDP", "rewritten")


WRAP_A, WRAP_B, CLIP_B = site("FSDP101", 1), site("FSDP101", 5), site("FSDP401", 6)


@pytest.fixture
def suspects(tmp_path: Path) -> Suspects:
    for name, text in (("before", BEFORE), ("after", AFTER)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    (tmp_path / "after" / "helper.py").write_text("def shard(m): raise ValueError\n")
    owners = {WRAP_A: 0, WRAP_B: 1, CLIP_B: 1}
    return Suspects(owners, tmp_path / "before", tmp_path / "after")


def crash(full: str) -> Ending:
    return Ending(end=End.CRASHED, folder=Path(), logs=Path(), seconds=1.0, full=full)


def frame(file: str, line: int) -> str:
    return f'  File "{file}", line {line}, in main\n    x\n'


def gate(key: str, title: str, status: Status) -> Gate:
    return Gate(key=key, title=title, status=status, says="otherwise")


def units(suspects: Suspects, **said: object) -> list[int]:
    return [s.unit for s in suspects.of(report(Verdict.DIFFERENT, **said))]  # type: ignore[arg-type]


def test_the_line_of_an_error_is_the_first_suspect(suspects: Suspects) -> None:
    found = suspects.of(
        report(Verdict.AFTER_FAILED, endings={"after": crash(frame("train.py", 8))})
    )
    assert [s.unit for s in found] == [1]
    assert found[0].evidence == "train.py:8 of the new code raised the error"


def test_an_error_in_a_helper_is_its_caller_s(suspects: Suspects) -> None:
    full = frame("train.py", 3) + frame("helper.py", 1) + frame("<installed>/torch/a.py", 9)
    assert units(suspects, endings={"after": crash(full)}) == [0]


GUARDED = """\
a = shard(one)
x = 1
y = 2
z = 3
b = shard(two)
# TODO(fsdp-migrate FSDP499): It is FSDP1's.
raise NotImplementedError("fsdp-migrate FSDP499: it is FSDP1's")
b.clip_grad_norm_(1.0)
"""


@pytest.mark.parametrize(
    ("says", "line", "expected"),
    [
        ("NotImplementedError: fsdp-migrate FSDP499: it is FSDP1's", 7, [1]),
        ("NotImplementedError: fsdp-migrate FSDP302: it is FSDP1's", 7, []),  # of no such site
        ("NotImplementedError: it is of the program itself", 3, []),
    ],
)
def test_a_guard_that_was_reached_is_about_the_site_behind_it(
    suspects: Suspects, says: str, line: int, expected: list[int]
) -> None:
    (suspects.after / "train.py").write_text(GUARDED)
    left = {site("FSDP499", 6): 1, site("FSDP499", 2): 0}
    guarded = dataclasses.replace(suspects, owners={}, left=left)
    ending = dataclasses.replace(crash(frame("train.py", line)), says=says)
    assert units(guarded, endings={"after": ending}) == expected


@pytest.mark.parametrize(
    "guarded_text",
    [
        GUARDED.replace("NotImplementedError", "SystemExit"),
        re.sub(r"raise NotImplementedError\((.*)\)", r"print(\1); os._exit(1)", GUARDED),
    ],
    ids=["an exit that may be caught", "an exit"],
)
@pytest.mark.parametrize(("reason", "expected"), [("it is FSDP1's", [1]), ("it is not", [])])
def test_a_guard_that_leaves_the_program_is_found_by_its_words(
    suspects: Suspects, reason: str, expected: list[int], guarded_text: str
) -> None:
    """It has no traceback."""
    (suspects.after / "train.py").write_text(guarded_text)
    guarded = dataclasses.replace(suspects, owners={}, left={site("FSDP499", 6): 1})
    says = f"rank 0 ended with exit code 1: fsdp-migrate FSDP499: {reason}"
    assert units(guarded, endings={"after": dataclasses.replace(crash(""), says=says)}) == expected


def test_what_the_words_of_an_error_speak_of(suspects: Suspects) -> None:
    casts = site("FSDP202", 5)
    owners = {**suspects.owners, casts: 1}
    ending = dataclasses.replace(crash(""), says="expected m1 and m2 to have the same dtype")
    found = Suspects(owners, suspects.before, suspects.after).of(
        report(Verdict.AFTER_FAILED, endings={"after": ending})
    )
    assert found[0].evidence == f"the error speaks of {casts}"
    assert not suspects.of(report(Verdict.AFTER_FAILED, endings={"after": ending}))


@pytest.mark.parametrize("line", [4, 5, 6])
def test_a_line_that_stands_as_it_did_is_no_suspect(suspects: Suspects, line: int) -> None:
    assert units(suspects, endings={"after": crash(frame("train.py", line))}) == []


def test_files_outside_of_the_tree_are_no_suspects(suspects: Suspects) -> None:
    outside = str((suspects.after / "train.py").absolute())
    assert units(suspects, endings={"after": crash(frame(outside, 3))}) == []


def test_what_was_not_sharded_comes_before_a_later_line(suspects: Suspects) -> None:
    failed = gate("placement", "sharding", Status.FAIL)
    said = {"gates": (failed,), "pointed": {("placement", ""): (WRAP_A,)}}
    assert units(suspects, endings={"after": crash(frame("train.py", 8))}, **said) == [0, 1]
    # While a model is being sharded, what is not sharded yet is no evidence.
    assert units(suspects, endings={"after": crash(frame("train.py", 7))}, **said) == [1, 0]


@pytest.mark.parametrize(
    ("kind", "name", "first"),
    [
        ("Net", "reshard", 0),
        ("Net", "set_requires_gradient_sync", 0),
        ("Net", "no_parameters", 1),
        ("Other", "reshard", 1),
    ],
)
def test_a_model_that_is_asked_for_what_only_a_sharded_one_has(
    suspects: Suspects, kind: str, name: str, first: int
) -> None:
    says = f"AttributeError: '{kind}' object has no attribute '{name}'"
    ending = dataclasses.replace(crash(frame("train.py", 8)), says=says)
    made = Made(0, "train.py", Span(1, 4, 1, 13), "Net", {}, (), 0)
    found = units(suspects, endings={"after": ending}, observed=Observed(made=(made,)))
    assert found[0] == first


@pytest.mark.parametrize(("line", "found"), [(5, [1]), (4, []), (99, [])])
def test_an_error_from_what_is_left_is_its_model_s(
    suspects: Suspects, line: int, found: list[int]
) -> None:
    """Line 5 of the new code is line 3 of the old, where a site is left."""
    left = dataclasses.replace(suspects, left={site("FSDP406", 3): 1})
    full = frame("train.py", 3) + frame("train.py", line) + frame("<installed>/torch/a.py", 9)
    every = left.of(report(Verdict.AFTER_FAILED, endings={"after": crash(full)}))
    named = [s.unit for s in every if "is left for you" in s.evidence]
    assert named == found
    assert not found or every[0].evidence.startswith("FSDP406 at train.py:3, FSDP() is left for")


def test_where_ranks_hang(suspects: Suspects) -> None:
    trace = RankTrace(0, "all_gather", 3, "all_gather", ("train.py:7 in main", "x.py:1 in f"))
    ending = Ending(end=End.HUNG, folder=Path(), logs=Path(), seconds=1.0, ranks=(trace,))
    assert units(suspects, endings={"after": ending}) == [1]


def test_gates_in_their_order_failures_first(suspects: Suspects) -> None:
    cost = gate("collectives", "collectives", Status.COST)
    failed = gate("clipping", "gradient clipping", Status.FAIL)
    pointed = {("collectives", ""): (WRAP_A,), ("clipping", ""): (CLIP_B,)}
    found = suspects.of(report(Verdict.DIFFERENT, gates=(cost, failed), pointed=pointed))
    assert [s.unit for s in found] == [1, 0]
    assert found[0].evidence.startswith("gradient clipping points at FSDP401 at train.py:6")


def test_how_often_gradients_are_reduced_comes_before_other_numbers(suspects: Suspects) -> None:
    names = ("clipping", "collectives", "trajectory")
    gates = tuple(gate(name, name, Status.FAIL) for name in names)
    pointed = {("clipping", ""): (CLIP_B,), ("collectives", ""): (WRAP_A,)}
    assert units(suspects, gates=gates, pointed=pointed) == [0, 1]


def test_without_any_evidence_what_the_run_made(suspects: Suspects) -> None:
    made = Made(0, "train.py", Span(5, 4, 5, 13), "Net", {}, (), 0)
    assert units(suspects, observed=Observed(made=(made,))) == [1]


def test_a_site_that_is_left_anyway_is_no_suspect(suspects: Suspects) -> None:
    failed = gate("clipping", "gradient clipping", Status.FAIL)
    pointed = {("clipping", ""): (site("FSDP401", 77),)}
    assert units(suspects, gates=(failed,), pointed=pointed) == []


def test_a_gate_names_all_sites_that_it_points_at(suspects: Suspects) -> None:
    failed = gate("clipping", "gradient clipping", Status.FAIL)
    pointed = {("clipping", ""): (CLIP_B, WRAP_B, WRAP_A)}
    found = suspects.of(report(Verdict.DIFFERENT, gates=(failed,), pointed=pointed))
    assert [s.sites for s in found] == [(CLIP_B, WRAP_B), (WRAP_A,)]


def test_other_sites_of_the_model_come_behind_those_that_a_gate_points_at(
    suspects: Suspects,
) -> None:
    """A norm differs where it is clipped, for gradients that no_sync did not reduce."""
    waits = site("FSDP402", 5)
    owners = {waits: 1, **suspects.owners}
    failed = gate("clipping", "gradient clipping", Status.FAIL)
    pointed = {("clipping", ""): (CLIP_B,)}
    found = dataclasses.replace(suspects, owners=owners).of(
        report(Verdict.DIFFERENT, gates=(failed,), pointed=pointed)
    )
    assert [s.sites for s in found] == [(CLIP_B, waits)]


def test_beside_a_cost_all_sites_may_be_the_cause(suspects: Suspects) -> None:
    """Another cost is no reason for a difference."""
    failed = gate("trajectory", "later steps", Status.FAIL)
    cost = gate("collectives", "collectives", Status.COST)
    found = suspects.of(
        report(Verdict.DIFFERENT, gates=(failed, cost), pointed={("collectives", ""): (CLIP_B,)})
    )
    assert [s.sites for s in found] == [(CLIP_B, WRAP_B)]


def test_where_nothing_is_named_how_the_model_is_sharded_comes_last(suspects: Suspects) -> None:
    made = Made(0, "train.py", Span(5, 4, 5, 13), "Net", {}, (), 0)
    kind, state = site("FSDP301", 5), site("FSDP302", 6)
    owners = {kind: 1, **suspects.owners, state: 1}
    found = dataclasses.replace(suspects, owners=owners).of(
        report(Verdict.DIFFERENT, observed=Observed(made=(made,)))
    )
    assert [s.sites for s in found] == [(CLIP_B, state, kind, WRAP_B)]


def test_what_the_run_came_by_comes_before_what_it_did_not(suspects: Suspects) -> None:
    made = Made(0, "train.py", Span(5, 4, 5, 13), "Net", {}, (), 0)
    waits = site("FSDP402", 4)
    use = Use("train.py", Span(4, 0, 4, 9), "no_sync")
    owners = {**suspects.owners, waits: 1}
    found = dataclasses.replace(suspects, owners=owners).of(
        report(Verdict.DIFFERENT, observed=Observed(uses=(use,), made=(made,)))
    )
    assert [s.sites for s in found] == [(waits, CLIP_B, WRAP_B)]
