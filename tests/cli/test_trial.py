"""What a trained migration proves."""

from __future__ import annotations

import pytest

from fsdp_migrate.cli.trial import kept_its_models
from fsdp_migrate.verify.compare.gate import Gate, Status
from fsdp_migrate.verify.compare.gates.shape import STILL_FSDP1
from fsdp_migrate.verify.report.model import Verdict
from tests.attempts.reports import report


def gate(status: Status, says: str = "as before") -> Gate:
    return Gate(key="any", title="any", status=status, says=says)


STILL = gate(Status.VOID, STILL_FSDP1)


@pytest.mark.parametrize(
    ("gates", "kept"),
    [
        ((STILL, gate(Status.PASS)), True),
        ((STILL, gate(Status.FAIL, "other losses")), False),
        ((STILL, gate(Status.VOID, "not recorded")), False),
        ((gate(Status.VOID, "of 2 changed files the migrated program imported none"),), False),
        ((gate(Status.PASS),), False),
        ((), False),
    ],
)
def test_a_program_whose_models_were_left_is_the_original(
    gates: tuple[Gate, ...], kept: bool
) -> None:
    assert kept_its_models(report(Verdict.INCONCLUSIVE, gates=gates)) is kept
