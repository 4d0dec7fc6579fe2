"""Every promise of docs/security.md names a test that there is."""

from __future__ import annotations

import re

from tests.helpers.commandline import ROOT

TESTS = ROOT / "tests" / "security"


def test_every_promise_names_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    named = re.findall(r"`(?:tests/security/)?(test_\w+\.py)?::(\w+)`", text)
    file, missing = "", []
    for given, test in named:
        file = given or file
        if f"\ndef {test}(" not in (TESTS / file).read_text():
            missing.append(f"{file}::{test}")
    assert len(named) > 30
    assert not missing
