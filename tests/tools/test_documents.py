"""What the documents say is true."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import documents
from tests.tools.documents import README, ROOT


def test_the_tables_of_rules_are_current() -> None:
    text = documents.RULES.read_text(encoding="utf-8")
    assert documents.with_rules(text) == text


def test_the_tables_of_coverage_are_current() -> None:
    text = documents.COVERAGE.read_text(encoding="utf-8")
    assert documents.with_coverage(text) == text


def test_readme_and_corpus_document_have_the_same_table() -> None:
    def table(text: str) -> str:
        found = re.search(r"<!-- corpus: .*?<!-- /corpus -->", text, re.DOTALL)
        assert found is not None
        return found.group()

    assert table(README.read_text(encoding="utf-8")) == table(
        documents.CORPUS.read_text(encoding="utf-8")
    )


def test_every_option_in_the_readme_exists() -> None:
    text = README.read_text(encoding="utf-8")
    used = set(re.findall(r"fsdp-migrate (\w+)([^\n`|]*)", text))
    assert used
    for command, rest in used:
        if command not in {"rewrite", "check", "explain", "undo", "verify"}:
            continue
        shown = subprocess.run(
            [sys.executable, "-m", "fsdp_migrate", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for option in re.findall(r"(?<=\s)--[a-z][\w-]+", rest.split(" -- ")[0]):
            assert option in shown, f"{command} has no {option}"


LINKED = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]


@pytest.mark.parametrize("document", LINKED, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(((?!https?:)[^)#\s]+)", document.read_text("utf-8")):
        assert (document.parent / link).exists(), link


def test_the_first_two_commands_are_the_newcomers() -> None:
    first = re.search(r"```sh\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert first is not None
    assert [line.split("#")[0].strip() for line in first.group(1).splitlines()][-2:] == [
        "make demo",
        "make test",
    ]
