"""Checkpoints: what the original saved, the migrated program resumes from."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fsdp_migrate.verify.inject.saved import _differences
from fsdp_migrate.verify.launch.scratch import find_written
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify
from tests.helpers.commandline import DEMO

from .programs import Replaced, altered

pytestmark = pytest.mark.train

CHECKPOINT = "finetune/checkpoint.py"


@pytest.fixture
def resuming(tmp_path: Path, server: WarmServer) -> Callable[..., Report]:
    """Verify the demo, resumed, with statements of its migration replaced."""

    def run(*replaced: Replaced, **changes: Any) -> Report:
        settings: dict[str, Any] = {
            "before": DEMO / "before",
            "after": altered(DEMO / "after", tmp_path / "after", replaced),
            "script": "train.py",
            "args": ("--steps", "20"),
            "max_steps": 5,
            "resume": ("--resume", "checkpoint.pt"),
            "twin": False,
            **changes,
        }
        return verify(Plan(**settings), server=server)

    return run


def test_both_versions_resume_from_a_checkpoint_of_the_original(
    resuming: Callable[..., Report],
) -> None:
    report = resuming()
    assert report.verdict is Verdict.SAME, text.render(report)
    assert {"before-resumed", "after-resumed"} <= set(report.endings)
    parts = {gate.part for gate in report.gates}
    assert parts == {"", "resumed"}
    found = {gate.key: gate for gate in report.gates if gate.part == "resumed"}
    assert found["optimizer-state"].says == "117 loaded states equal"
    (saved,) = (gate for gate in report.gates if gate.key == "saved")
    assert saved.says.startswith("checkpoint.pt: 168 values")
    assert not any("checkpoints" in limit for limit in report.limits)
    assert not list(DEMO.glob("**/*.pt"))


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        ("model.state_dict()", "one rank's part of"),
        (
            '{n: getattr(t, "_local_tensor", t) for n, t in model.state_dict().items()}',
            "before, float32[",
        ),
        ("None", "lacks model/"),
    ],
    ids=["DTensors", "local tensors", "nothing"],
)
def test_a_checkpoint_that_holds_one_shard_is_named(
    saved: str, says: str, resuming: Callable[..., Report]
) -> None:
    report = resuming((CHECKPOINT, '{"model": model_state,', f'{{"model": {saved},'))
    assert report.verdict is Verdict.DIFFERENT, text.render(report)
    assert "saved files: checkpoint.pt" in report.says
    assert says in report.says


def test_an_optimizer_that_forgets_is_named(resuming: Callable[..., Report]) -> None:
    source = (DEMO / "after" / CHECKPOINT).read_text()
    call = source[source.index("    set_optimizer_state_dict(\n") :].partition("\n    )\n")
    report = resuming((CHECKPOINT, call[0] + call[1], ""))
    assert report.verdict is Verdict.DIFFERENT, text.render(report)
    first = report.first_failure
    assert first is not None
    assert (first.part, first.key) == ("resumed", "optimizer-state")


def test_a_program_that_saves_nothing_in_time_is_undecided(
    resuming: Callable[..., Report],
) -> None:
    report = resuming(max_steps=2)
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "wrote no file within 2 steps" in report.says


def test_arguments_that_do_not_resume_are_noticed(resuming: Callable[..., Report]) -> None:
    report = resuming(resume=("--accumulate", "2"))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "does not resume" in report.says


def test_a_folder_that_is_one_checkpoint_counts_once(tmp_path: Path) -> None:
    for name in ("source/train.py", "source/data/x.bin"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    shutil.copytree(tmp_path / "source", tmp_path / "copy")
    for name in ("out/step3/.metadata", "out/step3/__0_0.distcp", "out/log.txt"):
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_text("y")
    assert find_written(tmp_path / "copy", tmp_path / "source") == ["out/log.txt", "out/step3"]


def test_infinite_values_are_the_same_and_hide_none() -> None:
    """The best loss of a callback is infinite before there was one."""
    inf, one, nan = (torch.tensor([x, 2.0]) for x in (math.inf, 1.0, math.nan))
    before = {"best": inf, "less": inf, "none": nan, "number": math.inf, "changed": one}
    after = {"best": inf, "less": one, "none": nan, "number": torch.tensor(math.inf)}
    after["changed"] = nan
    apart = {name: not d <= 1e-3 * size for name, d, size in _differences(before, after)["apart"]}
    assert apart == {"best": False, "less": True, "none": False, "number": False, "changed": True}
