"""The fixtures that were migrated by hand as well: those versions train like FSDP1's, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.report.model import Verdict
from tests.measure import BY_HAND, version_before
from tests.training.programs import Launcher, compare
from tests.training.test_programs import CASES, HALF, Case
from tests.verify.programs import judged

pytestmark = pytest.mark.train

REWRITTEN = [case for case in CASES if (BY_HAND / case.program).is_dir()]
# Programs that FSDP1 does not run on a CPU by itself: their arguments, and the plan of verify.
VERIFIED: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "causal": (("--precision", "fp32"), {}),
    # Without the twin, which measures what rounding does, tolerances are those of float32.
    "causal in bf16": (("--precision", "bf16"), {"twin": True}),
    "lifecycle": ((), {"max_steps": 8}),
    "packaged": (("4",), {"script": "module:trainer.main", "workdir": "src"}),
    "spawned": (("--port", "29653"), {"max_steps": 3}),
}


def both(case: Case, launcher: Launcher, *further: tuple[str, ...]) -> int:
    """Train both versions, and count the numbers that are alike."""
    before, after = further or ((), ())
    script = version_before(case.program) / "train.py"
    first = launcher.script(script, *case.arguments, *before, fsdp1="allow")
    script = BY_HAND / case.program / "after" / "train.py"
    second = launcher.script(script, *case.arguments, *after, fsdp1="forbid")
    return compare(first, second, tolerance=case.tolerance, atol=case.printed)


@pytest.mark.parametrize("case", REWRITTEN, ids=str)
def test_trains_the_same(case: Case, launcher: Launcher) -> None:
    assert both(case, launcher) >= case.numbers


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "momentum", "groups"])
def test_loads_the_checkpoints_of_fsdp1(optimizer: str, launcher: Launcher, tmp_path: Path) -> None:
    case = Case("checkpoints", ("--optimizer", optimizer))
    files = [str(tmp_path / f"{version}.pt") for version in ("before", "after")]
    assert both(case, launcher, *(("--save", file) for file in files)) == 3
    assert both(case, launcher, *[("--load", files[0])] * 2) == 3


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        ((), 1e-5),  # printed with six digits
        # Rounding in a norm, which other processors do differently.
        (("--precision", "bf16", "--accumulate", "1"), 5 * HALF),
        (("--precision", "bf16", "--accumulate", "3"), 10 * HALF),  # which FSDP2 adds up in fp32
    ],
    ids=str,
)
def test_the_demo_trains_and_resumes_the_same(
    arguments: tuple[str, ...], tolerance: float, launcher: Launcher, tmp_path: Path
) -> None:
    case = Case("demo", arguments, tolerance)
    outputs = [("--output", str(tmp_path / f"{v}.pt")) for v in ("before", "after")]
    assert both(case, launcher, *(("--steps", "5", *output) for output in outputs)) == 11
    further = ("--steps", "8", "--resume", outputs[0][1], "--output", str(tmp_path / "last.pt"))
    assert both(case, launcher, further, further) == 6


@pytest.mark.parametrize("title", VERIFIED)
def test_verify_passes(title: str) -> None:
    name, (arguments, plan) = title.partition(" ")[0], VERIFIED[title]
    after = BY_HAND / name / "after"
    report = judged(name, after=after, args=arguments, **{"twin": False, **plan})
    assert report.verdict is Verdict.SAME
