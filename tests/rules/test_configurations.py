"""The examples of rules about configurations: YAML, JSON and shell."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.outcome import Outcome
from fsdp_migrate.planning.rule import PYTHON, Example, Keep, LoadedRule
from tests.configurations.writing import NAMES, unmarked, write
from tests.helpers.migrating import REGISTRY

RULES = list(REGISTRY.rules.values())
EXAMPLES = [(r, e) for r in RULES for e in r.all_examples if e.language != PYTHON]
KEEPS = [(r, k) for r in RULES for k in r.all_keeps if k.language != PYTHON]


def name(value: object) -> str:
    if isinstance(value, (Example, Keep)):
        return value.title
    return value.code if isinstance(value, LoadedRule) else ""


every_example = pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=name)
every_keep = pytest.mark.parametrize(("rule", "keep"), KEEPS, ids=name)


def sources(example: Example) -> dict[str, str]:
    further = {path: before for path, (before, _) in example.files.items()}
    return {NAMES[example.language]: example.before, **further}


def expected(example: Example) -> dict[str, str]:
    further = {path: after for path, (_, after) in example.files.items()}
    return {NAMES[example.language]: example.after, **further}


@every_example
def test_becomes_what_the_page_says(rule: LoadedRule, example: Example) -> None:
    found = write(sources(example), None)
    assert not found.problems
    assert found.after == expected(example)
    assert found.worst() is example.outcome
    assert {each.code for each in found.found} == {rule.code}


@every_example
def test_a_second_run_changes_nothing(rule: LoadedRule, example: Example) -> None:
    assert write(expected(example), None).after == expected(example)


@every_example
def test_line_endings_are_kept(rule: LoadedRule, example: Example) -> None:
    if example.language == "sh":
        return  # no shell reads such a script
    found = write({p: t.replace("\n", "\r\n") for p, t in sources(example).items()}, None)
    assert found.after == {p: t.replace("\n", "\r\n") for p, t in expected(example).items()}


@every_keep
def test_comes_back_byte_for_byte(rule: LoadedRule, keep: Keep) -> None:
    file = NAMES[keep.language]
    found = write({file: keep.source}, None)
    assert unmarked(found.after[file]) == keep.source
    assert found.outcomes() == ({Outcome.LEFT} if keep.left else set())
    assert write(found.after, None).after == found.after
