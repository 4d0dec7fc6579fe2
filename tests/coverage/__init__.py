"""What the tool does about each difference between FSDP1 and FSDP2, row by row, as data.

``docs/coverage.md`` is generated from it (``python -m tests.documents coverage``), and
``tests/test_coverage.py`` holds it to the rules and to the tests that train.
"""

from __future__ import annotations

from dataclasses import dataclass

OUTCOMES = ("rewritten", "review", "left", "nothing to do", "not recognised")
"""``nothing to do``: no code follows from it. ``not recognised``: the tool does not see it."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One difference: what FSDP1 code has, what becomes of it, and what shows it.

    ``example`` is the title of an example, or of a source that is kept, of ``rule``; or a test, as
    ``tests/test_x.py::test_y``. ``trained`` is the test that runs it before and after, where
    numbers could tell.
    """

    section: str
    fsdp1: str
    becomes: str
    outcome: str
    rule: str = ""
    example: str = ""
    trained: str = ""
