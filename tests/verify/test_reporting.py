"""Renderings of a report."""

from __future__ import annotations

import json
import math

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gates.training import Row, rows
from fsdp_migrate.verify.compare.judge import judge
from fsdp_migrate.verify.report import json as as_json
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict

from .recordings import Run, evidence


def report(found: Evidence, verdict: Verdict) -> Report:
    return Report(
        verdict=verdict,
        says="why",
        program="train.py",
        before="old",
        after="new",
        setting="2 ranks, gloo",
        gates=judge(found).gates,
        rows=tuple(rows(found)),
    )


def test_exit_codes_are_three() -> None:
    codes = {verdict.value: verdict.exit_code for verdict in Verdict}
    assert codes == {
        "same_training": 0,
        "different": 1,
        "after_failed": 1,
        "after_hung": 1,
        "before_failed": 2,
        "before_hung": 2,
        "unrecorded": 2,
        "inconclusive": 2,
    }


def test_the_screen_shows_every_gate_and_ends_with_the_verdict() -> None:
    shown = text.render(report(evidence(), Verdict.SAME))
    assert shown.count("  PASS  ") == 21 + 1
    assert shown.rstrip().splitlines()[-1] == "VERDICT  PASS  same training: why"
    assert "norm before" in shown
    assert all(len(line) <= 98 for line in shown.splitlines())


def test_the_screen_of_a_failure_names_what_to_look_at() -> None:
    shown = text.render(report(evidence(scatters=4), Verdict.DIFFERENT))
    assert "collectives             FAIL  step 2: 2 reduce-scatter calls before, 4 after" in shown
    assert "VERDICT  FAIL  different training: why" in shown
    assert "look at: gradients are reduced at every backward: no_sync was lost" in shown


def test_long_tables_are_shortened_around_the_worst_step() -> None:
    table = tuple(Row(n, 1.0, 1.0, 1e-9 * (n == 17), 1e-6, None) for n in range(1, 31))
    shown = text.render(
        Report(
            verdict=Verdict.SAME,
            says="",
            program="p",
            before="b",
            after="a",
            setting="",
            rows=table,
        )
    )
    steps = [line[:4].strip() for line in shown.splitlines() if line[:4].strip().isdigit()]
    assert steps == ["1", "2", "3", "4", "5", "6", "7", "8", "17", "29", "30"]
    assert shown.count(" ...") == 2


def test_json_is_strict_and_complete() -> None:
    found = Evidence(Run().record(), Run(clip=None).record())
    written = json.loads(
        as_json.render(report(found, Verdict.DIFFERENT)), parse_constant=lambda name: 1 / 0
    )
    assert written["verdict"] == "different"
    assert written["exit_code"] == 1
    assert written["first_failure"] == "clipping"
    assert [gate["key"] for gate in written["gates"]][:2] == ["steps", "recorded"]
    assert len(written["steps"]) == 4
    bad = report(found, Verdict.DIFFERENT)
    nan = Row(1, math.nan, math.inf, math.nan, 1.0, None)
    odd = json.loads(as_json.render(Report(**{**bad.__dict__, "rows": (nan,)})))
    assert odd["steps"][0]["before"] == "nan"
