"""Renderings of a report."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gates.training import Row, rows
from fsdp_migrate.verify.compare.judge import judge
from fsdp_migrate.verify.launch.ending import End, Ending, RankTrace
from fsdp_migrate.verify.report import RENDERERS, SUFFIXES, html, junit, markdown, text
from fsdp_migrate.verify.report import json as as_json
from fsdp_migrate.verify.report.model import Apart, Report, Traffic, Verdict, World

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
        "same_training_other_cost": 0,
        "different": 1,
        "after_failed": 1,
        "after_hung": 1,
        "before_failed": 2,
        "before_hung": 2,
        "unrecorded": 2,
        "inconclusive": 2,
    }


@pytest.mark.parametrize(("strict", "word", "code"), [(False, "PASS", 0), (True, "FAIL", 1)])
def test_another_cost_fails_only_where_that_was_asked(strict: bool, word: str, code: int) -> None:
    found = report(evidence(gathers=4), Verdict.SAME_AT_OTHER_COST)
    found = dataclasses.replace(found, strict_cost=strict)
    assert found.exit_code == code
    for name, render in RENDERERS.items():
        told = render(found)
        assert "same training, other cost" in told or name == "json"
        if name == "junit":
            assert ("<failure" in told) == strict
        elif name != "json":
            assert word in told
    assert json.loads(RENDERERS["json"](found))["exit_code"] == code
    assert "collectives             COST  step 2: 5 all-gather" in text.render(found)


def test_the_screen_shows_every_gate_and_ends_with_the_verdict() -> None:
    shown = text.render(report(evidence(), Verdict.SAME))
    assert shown.count("  PASS  ") == 22 + 1
    assert shown.rstrip().splitlines()[-1] == "VERDICT  PASS  same training: why"
    assert "norm before" in shown
    assert all(len(line) <= 98 for line in shown.splitlines())


def test_the_screen_ends_where_a_narrow_terminal_does() -> None:
    found = report(evidence(scatters=4), Verdict.DIFFERENT)
    found = dataclasses.replace(found, setting="2 ranks, " * 12, says="a reason " * 20)
    wide, narrow = text.render(found), text.render(found, 80)
    assert max(map(len, narrow.splitlines())) <= 80 < max(map(len, wide.splitlines())) <= 98
    assert narrow.split() == wide.split()
    assert text.render(found, 300) == wide
    assert text.render(found, 1) == text.render(found, 60)


def test_a_pass_says_which_changed_lines_never_ran() -> None:
    said = {"not_executed": ("train.py:8-9", "train.py:20")}
    passed = full(evidence(), Verdict.SAME, **said)
    for render in (text.render, markdown.render, html.render, junit.render):
        shown = " ".join(render(passed).split())
        assert "changed and never ran: train.py:8-9, train.py:20" in shown
    assert '"train.py:8-9"' in as_json.render(passed)
    assert not full(evidence(lr=0.02), Verdict.DIFFERENT, **said).caveat


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
    assert [gate["key"] for gate in written["gates"]][:2] == ["ran", "steps"]
    assert len(written["steps"]) == 4
    bad = report(found, Verdict.DIFFERENT)
    nan = Row(1, math.nan, math.inf, math.nan, 1.0, None)
    odd = json.loads(as_json.render(Report(**{**bad.__dict__, "rows": (nan,)})))
    assert odd["steps"][0]["before"] == "nan"


def full(found: Evidence, verdict: Verdict, **changes: object) -> Report:
    """A report with everything that can be in one, and text that formats could trip over."""
    settings = {
        **report(found, verdict).__dict__,
        "says": "a <b> & `c` | d_e",
        "worlds": (
            World(
                ranks=2,
                first=(1.0, 1.0),
                last=(0.5, 0.5),
                loss_apart=1e-7,
                parameters_apart=None,
                from_first=2e-8,
                ok=True,
            ),
        ),
        "traffic": (Traffic("forward", "all-gather", "bfloat16", (3, 1024), (4, 1024)),),
        "held": ((4096, 4096), (4096, 4096)),
        "parameters": (Apart("layer.weight", 1e-8, 1e-6, 2e-8),),
        "endings": {
            "after": Ending(
                end=End.HUNG,
                folder=Path("x"),
                logs=Path("x"),
                seconds=1.0,
                says="no progress \x1b[0m",
                ranks=(RankTrace(0, "waits for <x>", 3, "all_reduce", ("train.py:5 in main",)),),
            )
        },
        "notes": ("what_a `note`",),
        "limits": ("nothing",),
        **changes,
    }
    return Report(**settings)


def test_every_suffix_has_a_format() -> None:
    assert set(SUFFIXES.values()) == set(RENDERERS)


def test_junit_has_a_case_for_every_gate_and_one_for_the_verdict() -> None:
    found = full(evidence(clip=None), Verdict.DIFFERENT)
    suite = ET.fromstring(junit.render(found).split("\n", 1)[1])
    cases = suite.findall("testcase")
    assert len(cases) == len(found.gates) + 1 == int(str(suite.get("tests")))
    failed = [case.get("name") for case in cases if case.find("failure") is not None]
    assert failed[0] == "gradient clipping"
    assert failed[-1] == "verdict"
    assert int(str(suite.get("failures"))) == len(failed)
    (verdict,) = suite.findall("testcase[@name='verdict']/failure")
    assert verdict.get("message") == "different training: a <b> & `c` | d_e"


def test_a_crash_has_no_gates_but_a_failed_case() -> None:
    crashed = full(evidence(), Verdict.AFTER_FAILED, gates=(), rows=())
    suite = ET.fromstring(junit.render(crashed).split("\n", 1)[1])
    assert suite.get("failures") == "1"
    undecided = full(evidence(), Verdict.INCONCLUSIVE, gates=(), rows=())
    suite = ET.fromstring(junit.render(undecided).split("\n", 1)[1])
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")


def test_markdown_shows_text_as_it_is() -> None:
    shown = markdown.render(full(evidence(clip=None), Verdict.DIFFERENT))
    assert shown.startswith("## verify: FAIL, different training\n")
    assert "a \\<b\\> \\& \\`c\\` \\| d\\_e" in shown
    tables = [line for line in shown.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert "<details open>" in shown
    assert "<details>" in markdown.render(full(evidence(), Verdict.SAME))


def test_the_page_is_one_file_and_draws_both_curves() -> None:
    page = html.render(full(evidence(scatters=4), Verdict.DIFFERENT))
    assert page.count("<svg") == page.count("</svg>") == 2
    for style in ("before", "after", "allowed", "twin"):
        assert f'<polyline class="{style}"' in page
    assert '<polygon class="noise"' in page
    assert "a &lt;b&gt; &amp; `c` | d_e" in page
    assert "waits for &lt;x&gt;" in page
    assert not re.search(r"https?:|<script|<link|src=|@import|url\(", page)
    body = page[page.index("<body>") : page.index("</body>") + len("</body>")]
    ET.fromstring(re.sub(r" class=n", ' class="n"', body))  # every tag is closed


def test_the_page_says_at_the_top_what_was_not_checked_and_shows_one_cause() -> None:
    page = html.render(full(evidence(lr=0.02, clip=None), Verdict.DIFFERENT))
    assert '<p class="limits">Not checked: nothing</p>' in page.split("</header>")[0]
    assert page.count('<tr class="cause">') == page.count('<td class="fail">cause</td>') == 1
    assert '<td class="note">follows</td>' in page


def test_the_page_of_a_crash_and_of_odd_numbers_can_be_made() -> None:
    html.render(full(evidence(), Verdict.AFTER_FAILED, gates=(), rows=(), worlds=(), held=None))
    odd = (Row(1, math.nan, math.inf, math.nan, 1.0, None), Row(2, 0.0, 0.0, 0.0, 0.0, math.inf))
    for name in RENDERERS:
        RENDERERS[name](full(evidence(), Verdict.DIFFERENT, rows=odd))
