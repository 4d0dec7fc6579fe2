"""What came of a search, as it is told."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from fsdp_migrate.attempts import html
from fsdp_migrate.attempts.report import Migration, as_json, as_text, markdown
from fsdp_migrate.attempts.search import Forms, Limits, Search, Suspect
from fsdp_migrate.verify.report.model import Report, Verdict
from tests.attempts.reports import report
from tests.documents.schemas import problems


def migration(*, broken: str = "", says: str = "the whole program", **more: object) -> Migration:
    """Of two models, the second of which fails for what is ``broken``."""

    def train(forms: Forms) -> tuple[Report, ...]:
        if broken and 1 not in forms.left:
            return (report(Verdict.DIFFERENT, broken),)
        return (report(Verdict.SAME, says),)

    search = Search(
        units=range(2),
        train=train,
        suspect=lambda attempt: [Suspect(1, broken)],
        limits=Limits(10, float("inf")),
    )
    search.run()
    titles = ("the model made at train.py:1", "the model made at train.py:2")
    return Migration(
        programs=("train.py",),
        titles=titles,
        search=search,
        seconds=3.0,
        **more,  # type: ignore[arg-type]
    )


RENDERERS = (as_text, as_json, markdown, html.render)


@pytest.mark.parametrize("render", RENDERERS)
def test_every_form_tells_what_was_left_and_why(render: object) -> None:
    shown = render(migration(broken="a clip of another norm"))  # type: ignore[operator]
    assert "the model made at train.py:2" in shown
    assert "as it is written first, different training: a clip of another norm" in shown
    assert "same training" in shown


def test_the_page_says_first_how_it_ended() -> None:
    def head(found: Migration) -> str:
        return html.render(found).partition("<body>")[2].partition("</header>")[0]

    assert '<header class="good">' in head(migration())
    assert "MIGRATED</span>same training" in head(migration())
    assert '<header class="open">' in head(migration(broken="x"))
    never = migration(broken="x")
    never.search.best = None
    assert "NOT MIGRATED</span>not migrated: no attempt trained the same" in head(never)


def test_the_page_marks_the_attempt_that_was_taken_and_shows_its_report() -> None:
    page = html.render(migration(broken="x", notes=("a note",), written=("train.py",)))
    assert "<td>1</td><td>everything is written out</td>" in page
    assert "<td>2 (taken)</td><td>without the model made at train.py:2<small>x</small></td>" in page
    assert "attempt 2: train.py, as verify reports it" in page
    assert "<li>a note</li>" in page
    body = page[page.index("<body>") : page.index("</body>") + len("</body>")]
    ET.fromstring(re.sub(r" class=n", ' class="n"', body))  # every tag is closed


@pytest.mark.parametrize("piece", ["<script>", "a & b", "x\u202ey", "\x1b[31m", "</table>"])
def test_the_page_shows_and_does_not_obey(piece: str) -> None:
    page = html.render(migration(broken=piece, says=piece, notes=(piece,), written=(piece,)))
    plain = html.render(migration(broken="x", says="x", notes=("x",), written=("x",)))
    tags = re.compile(r"<[^>]*>")
    assert tags.findall(page) == tags.findall(plain)
    assert "\u202e" not in page
    assert "\x1b" not in page


def test_the_data_is_that_of_the_migration() -> None:
    found = migration(broken="x")
    assert json.loads(as_json(found)) == found.to_dict()


@pytest.mark.parametrize(
    "found",
    [
        migration(),
        migration(broken="x", seen=("train.py:3: a fact",), notes=("a note",), written=("a.py",)),
    ],
    ids=["at once", "with one left"],
)
def test_the_data_has_the_form_that_is_published(found: Migration) -> None:
    document = json.loads(as_json(found))
    assert problems("migrate", document) == []
    (attempt, *_) = document["attempts"]
    for place in (document, attempt, attempt["reports"][0]):
        place["another"] = 1
        assert problems("migrate", document)
        del place["another"]


def test_a_search_that_ends_at_the_original_has_the_form_too() -> None:
    found = migration(broken="x")
    found.search.best = None
    assert problems("migrate", json.loads(as_json(found))) == []


def test_what_is_not_finite_is_a_string() -> None:
    written = as_json(replace(migration(), seconds=float("inf")))
    assert '"seconds": "inf"' in written
