"""The commands that say what comes of ``migrate``: what they count, and that they can go on."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.attempts import broken, everything, records
from tests.attempts.broken import BROKEN, Broken
from tests.attempts.records import Record
from tests.helpers.migrating import migrated
from tests.verify.pairs import FIXTURES, PAIRS


@cache
def written(program: str) -> str:
    return "\n".join(migrated(FIXTURES / program / "before").values())


def test_twenty_programs_are_broken_each_in_its_own_way() -> None:
    assert len(BROKEN) == len(broken.NAMES) == 20


@pytest.mark.parametrize("each", BROKEN, ids=str)
def test_what_is_broken_is_written(each: Broken) -> None:
    assert each.old in written(each.program)
    assert each.old != each.new


CLIP = Broken("p", "right", "wrong", ("FSDP401",))


@pytest.mark.parametrize(
    ("why", "named"),
    [
        ("gradient clipping points at FSDP401 at train.py:3, FSDP.clip_grad_norm_", True),
        ("units points at FSDP102 at train.py:3, policy", False),
        ("train.py:7 of the new code raised the error", True),
        ("train.py:8 of the new code raised the error", False),
        ("its model is made at train.py:1", False),
    ],
)
def test_a_site_is_named_by_its_rule_or_the_line_of_what_is_broken(why: str, named: bool) -> None:
    record = {"attempts": [{"why": ""}, {"why": why}], "places": ["train.py:7"]}
    assert broken.names_the_site(CLIP, record) is named


def test_what_passes_at_once_names_nothing() -> None:
    assert not broken.names_the_site(CLIP, {"attempts": [{"why": ""}], "places": []})


def record(**changes: object) -> Record:
    plain = {
        "same_training": True,
        "title": "same training",
        "left": [],
        "attempts": [{"trained": True}],
        "hand": 10,
        "lines": 12,
        "seconds": [9.0, 9.0],
        "verify": [8.0, 8.0],
    }
    return {**plain, **changes}


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, []),
        ({"same_training": False}, ["not migrated"]),
        ({"left": ["a model"]}, ["left: a model"]),
        ({"lines": 15}, []),
        ({"lines": 16}, ["1.60 times the hand's lines"]),
        ({"lines": 16, "hand": None}, []),
        # Work beside it makes it slow on the clock, and costs no more of the processors.
        ({"seconds": [90.0, 24.0]}, []),
        ({"seconds": [9.0, 24.1]}, ["3.0 times one verify"]),
        ({"seconds": [9.0, 24.1], "verify": []}, []),
    ],
)
def test_bars_that_are_missed(changes: dict[str, object], missed: list[str]) -> None:
    assert list(everything.missed(record(**changes))) == missed


def test_every_program_that_a_person_migrated_comes_first() -> None:
    names = list(everything.PROGRAMS)
    hands = [path.parent.name for path in sorted(FIXTURES.glob("by_hand/*/after"))]
    assert names[: len(hands)] == [f"by_hand/{name}" for name in hands]
    for pair in everything.PROGRAMS.values():
        assert (FIXTURES / pair.program).is_dir(), pair


def test_a_sample_has_one_call_of_every_fixture_that_was_not_measured() -> None:
    every = everything.sample(20, ())
    fixtures = [everything.PROGRAMS[name].program for name in every]
    assert sorted(fixtures) == sorted({pair.program for pair in PAIRS})
    kept = every[0]
    assert everything.sample(20, [kept]) == every[1:]  # the others are drawn as they were
    assert everything.sample(21, ()) != every


@pytest.mark.parametrize("names", [list(broken.NAMES), list(everything.PROGRAMS)])
def test_every_program_has_a_file_of_its_own(names: list[str]) -> None:
    assert len({records.place("t", name) for name in names}) == len(names)


def test_what_is_kept_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    measured: list[str] = []

    def measure(name: str) -> Record:
        measured.append(name)
        if name == "c":
            raise KeyboardInterrupt
        return {"name": name}

    with pytest.raises(KeyboardInterrupt):
        list(records.measured("t", ["a", "b --x", "c"], measure, again=False))
    found = dict(records.measured("t", ["a", "b --x"], measure, again=False))
    assert measured == ["a", "b --x", "c"]
    assert found["b --x"]["name"] == "b --x"
    assert found["b --x"]["revision"]
    assert list(records.kept("t", ["a", "b --x", "c"])) == ["a", "b --x"]
    list(records.measured("t", ["a"], measure, again=True))
    assert measured[-1] == "a"
