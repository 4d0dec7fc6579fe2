"""What the tool does about each difference between FSDP1 and FSDP2, row by row, as data.

``docs/coverage.md`` is generated from it (``python -m tests.tools.documents coverage``), and
``tests/coverage/test_coverage.py`` holds it to the rules and to the tests that train.
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


def program(case: str) -> str:
    return f"test_programs.py::test_trains_the_same[{case}]"


def units(case: str) -> str:
    return f"test_groups.py::test_units_are_the_same[{case}]"


def arguments(case: str) -> str:
    return f"test_shard.py::test_trains_the_same[{case}]"


def weights(case: str) -> str:
    return f"test_weights.py::test_synchronised_models_are_rank_0s[{case}]"


def checkpoint(case: str) -> str:
    return f"test_checkpoints.py::test_{case}"


def guarded(case: str) -> str:
    return f"test_guarded.py::test_two_ranks_save_whole_tensors[{case}]"


def support(case: str) -> str:
    return f"test_support.py::test_on_two_ranks[{case}]"


def rewritten(
    section: str, fsdp1: str, becomes: str, rule: str, example: str, trained: str = ""
) -> Row:
    return Row(
        section=section,
        fsdp1=fsdp1,
        becomes=becomes,
        outcome="rewritten",
        rule=rule,
        example=example,
        trained=trained,
    )


def review(
    section: str, fsdp1: str, becomes: str, rule: str, example: str, trained: str = ""
) -> Row:
    return Row(
        section=section,
        fsdp1=fsdp1,
        becomes=becomes,
        outcome="review",
        rule=rule,
        example=example,
        trained=trained,
    )


def left(section: str, fsdp1: str, becomes: str, rule: str, example: str, trained: str = "") -> Row:
    return Row(
        section=section,
        fsdp1=fsdp1,
        becomes=becomes,
        outcome="left",
        rule=rule,
        example=example,
        trained=trained,
    )


def nothing(section: str, fsdp1: str, why: str, trained: str = "") -> Row:
    return Row(section=section, fsdp1=fsdp1, becomes=why, outcome="nothing to do", trained=trained)


def unseen(section: str, fsdp1: str, happens: str, trained: str = "") -> Row:
    return Row(
        section=section, fsdp1=fsdp1, becomes=happens, outcome="not recognised", trained=trained
    )
