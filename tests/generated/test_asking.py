"""A sample of what hidden models are asked for; ``tests.generated --asking`` makes all of it."""

from __future__ import annotations

import pytest

from fsdp_migrate.planning.rule import Registry
from tests.generated import asking
from tests.helpers import migrating

SEED, COUNT = 20261126, 120
FINDING = {  # what is not seen any more without the finders of a rule
    "FSDP424": "dispatch",
    "FSDP425": "children",
    "FSDP415": "a parameter",
    "FSDP414": "a copy",
    "FSDP408": "shapes",
}
OPEN = {"the whole"}  # a model that is pickled stops the program, and may be a state


def test_nothing_is_silent() -> None:
    questions = [q for q in asking.chosen(COUNT, SEED) if q.asked not in OPEN]
    assert len(questions) > COUNT // 2
    assert not [str(question) for question in questions if not asking.is_said(question)]


@pytest.mark.parametrize("code", FINDING)
def test_without_a_rule_it_is_silent(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked here fails where it should."""
    questions = [q for q in asking.questions() if q.asked == FINDING[code]]
    question = next(q for q in questions if q.way == "a list" and q.where == "a function")
    assert asking.is_said(question)
    others = {c: loaded for c, loaded in migrating.REGISTRY.rules.items() if c != code}
    monkeypatch.setattr(migrating, "REGISTRY", Registry(others))
    assert not asking.is_said(question)


def test_every_program_is_one() -> None:
    every = list(asking.questions())
    assert len(every) > 2000
    for question in every:
        compile(question.text, str(question), "exec")
        line = question.text.splitlines()[question.line - 1]
        assert "hidden" in line or line in asking.HELPERS.values()
