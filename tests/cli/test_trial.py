"""What a trained migration proves."""

from __future__ import annotations

import pytest

from fsdp_migrate.cli.trial import kept_its_models
from fsdp_migrate.verify.compare.gate import AMPLIFIES, Gate, Status
from fsdp_migrate.verify.compare.gates.shape import STILL_FSDP1
from fsdp_migrate.verify.report.model import Verdict
from tests.attempts.reports import report


def gate(status: Status, says: str = "as before", hint: str = "") -> Gate:
    return Gate(key="any", title="any", status=status, says=says, hint=hint)


STILL = gate(Status.VOID, STILL_FSDP1)
NOISE = gate(Status.VOID, "11 % had to be allowed", AMPLIFIES)


@pytest.mark.parametrize(
    ("gates", "kept"),
    [
        ((STILL, gate(Status.PASS)), True),
        ((STILL, NOISE), True),
        ((NOISE,), False),
        ((STILL, NOISE, gate(Status.FAIL, "other losses")), False),
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
