"""Every example of every hazard: what is wrong is found, what to write instead is not."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.rule import Example, Keep, LoadedRule
from tests.helpers.hazards import codes, mended, notes
from tests.helpers.migrating import REGISTRY, migrate

RULES = [rule for rule in REGISTRY.rules.values() if rule.rule.hazards is not None]
EXAMPLES = [(rule, each) for rule in RULES for each in rule.all_examples]
OTHER_FORMS = {"FSDP901", "FSDP904", "FSDP912"}  # whose pages show a better form than ours
NOTES = {"FSDP917"}  # which are of what may be meant
KEEPS = [(rule, each) for rule in RULES for each in rule.keep]


def name(value: object) -> str:
    if isinstance(value, (Example, Keep)):
        return value.title
    return value.code if isinstance(value, LoadedRule) else ""


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
def test_what_is_wrong_is_found_and_nothing_is_changed(rule: LoadedRule, example: Example) -> None:
    found = notes if rule.code in NOTES else codes
    assert found(example.before) == [rule.code]
    result, _ = migrate({"example.py": example.before})
    assert not result.decisions
    assert not result.changes


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
def test_what_to_write_instead_has_no_hazard(rule: LoadedRule, example: Example) -> None:
    assert codes(example.after) == []
    assert rule.code not in notes(example.after)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
def test_what_is_mended_has_no_hazard(rule: LoadedRule, example: Example) -> None:
    after = mended(example.before)
    if after == example.before:  # described, and left to somebody
        return
    assert codes(after) == []
    assert mended(after) == after
    if rule.code not in OTHER_FORMS:
        assert after == example.after


@pytest.mark.parametrize(("rule", "keep"), KEEPS, ids=name)
def test_nothing_is_found_in_what_is_kept(rule: LoadedRule, keep: Keep) -> None:
    assert codes(keep.source) == []
    assert rule.code not in NOTES.intersection(notes(keep.source))


@pytest.mark.parametrize("rule", RULES, ids=name)
def test_a_hazard_is_shown_and_kept_apart(rule: LoadedRule) -> None:
    assert rule.code.startswith("FSDP9")
    assert rule.code < "FSDP990"
    assert not rule.rule.handles
    assert len(rule.keep) >= len(rule.all_examples) >= 3
