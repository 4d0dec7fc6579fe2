"""Every promise of docs/security.md names a test that there is."""

from __future__ import annotations

import re

from tests.helpers.commandline import ROOT

TESTS = ROOT / "tests"


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(?:tests/)?((?:\w+/)*test_\w+\.py)?::(\w+)`", text)
    file, missing = "", []
    for given, test in named:
        file = given or file
        folder = TESTS if "/" in file else TESTS / "security"
        if f"\ndef {test}(" not in (folder / file).read_text():
            missing.append(f"{file}::{test}")
    undo = (TESTS / "security" / "test_undo.py").read_text()  # where no file is named
    missing += [n for n in re.findall(r"`(test_\w+)`", text) if f"\ndef {n}(" not in undo]
    assert len(named) > 30
    assert not missing
