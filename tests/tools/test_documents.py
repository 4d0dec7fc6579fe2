"""What the documents say is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.snippets import PAGES
from tests.helpers.migrating import migrate
from tests.tools import documents
from tests.tools.documents import README, ROOT


def test_the_tables_of_rules_are_current() -> None:
    text = documents.RULES.read_text(encoding="utf-8")
    assert documents.with_rules(text) == text


def test_the_tables_of_coverage_are_current() -> None:
    text = documents.COVERAGE.read_text(encoding="utf-8")
    assert documents.with_coverage(text) == text


def test_the_table_of_first_contact_is_current() -> None:
    text = documents.FIRST_CONTACT.read_text(encoding="utf-8")
    assert documents.with_first_contact(text) == text


PROGRAM = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Block(nn.Module):
    def forward(self, x):
        return x.float()


def build():
    model = nn.Sequential(Block(), Block())
{lines}    return model
"""


def test_the_change_that_the_readme_shows_is_the_tools() -> None:
    shown = re.search(r"```diff\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    lines = shown.group(1).splitlines(keepends=True)
    old, new = ("".join(line[1:] for line in lines if line[0] == sign) for sign in "-+")
    _, after = migrate({"example.py": PROGRAM.format(lines=old)})
    assert after["example.py"].endswith(PROGRAM.format(lines=new).partition("class")[2])


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
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


@pytest.mark.parametrize("document", PAGES, ids=lambda path: path.name)
def test_modules_that_are_named_exist(document: Path) -> None:
    """`rewriting/check.py` is one of the package, `tests/test_house.py` one of the repository."""
    for path in re.findall(r"`([\w.]+/[\w./]+\.py)(?:::\w+)?`", document.read_text("utf-8")):
        assert (ROOT / path).exists() or (ROOT / "fsdp_migrate" / path).exists(), path


def test_the_code_beside_torchtitans_is_what_is_written() -> None:
    text = documents.TORCHTITAN.read_text(encoding="utf-8")
    assert documents.with_torchtitan(text) == text
