"""The demo project: what the tool makes of it trains the same, and each known defect is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify
from tests.helpers.commandline import DEMO, answering
from tests.verify.programs import Replaced, altered, failed

pytestmark = pytest.mark.train

STEPS = 4
"""Enough for every defect here; an evaluation and a checkpoint fall in between."""

Verify = Callable[..., Report]


@pytest.fixture
def against(baselines: Path, server: WarmServer, tmp_path: Path) -> Verify:
    """Verify the demo's original against its migration with statements replaced."""

    def run(*replaced: Replaced) -> Report:
        after = altered(DEMO / "after", tmp_path / "after", replaced)
        plan = Plan(
            before=DEMO / "before",
            after=after,
            script="train.py",
            args=("--steps", "20"),
            max_steps=STEPS,
            timeout=60.0,
            cache=baselines,
        )
        return verify(plan, server=server)

    return run


# --- as a user runs it ----------------------------------------------------------------------------


def test_the_rewritten_demo_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    shutil.copytree(DEMO / "before", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    written = sorted(Path().rglob("*"))
    answer = answering(capfdbinary)(
        *("verify", "train.py", "--steps", "6", "-o", tmp_path / "report.json"),
        *("--", "--steps", "20"),
    )
    assert answer.code == 0, answer.out + answer.err
    lines = answer.out.splitlines()
    assert lines[2] == "after    the same, rewritten in a scratch copy"
    went = "steps 1 to 6 of a program that went on, 2 ranks, "
    verdict = next(n for n, line in enumerate(lines) if line.startswith("VERDICT"))
    assert lines[verdict].startswith(f"VERDICT  PASS  same training: {went}")
    assert lines[verdict + 1].split()[:4] == ["but:", "changed", "and", "never"]
    header = next(n for n, line in enumerate(lines) if line.startswith("step"))
    for name in ("loss before", "loss after", "|diff|", "allowed", "norm before", "norm after"):
        assert name in lines[header]
    table = [line.split() for line in lines[header + 1 : header + 7]]
    assert [row[0] for row in table] == ["1", "2", "3", "4", "5", "6"]
    for _, before, after, apart, allowed, norm_before, norm_after in table:
        assert float(before) == pytest.approx(float(after), rel=1e-6)
        assert float(apart) <= float(allowed)
        assert norm_before == norm_after
    assert float(table[-1][1]) < float(table[0][1])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == "same_training"
    # Whatever the program writes (checkpoints) it wrote in a scratch copy.
    assert sorted(Path().rglob("*")) == written


# --- planted defects ------------------------------------------------------------------------------

BUILT = "    optimizer = build_optimizer(model, config)\n"
SHARDED = "    model = shard_model(model, config, device)\n"
ROOT = "    fully_shard(model, mp_policy=root_mp_policy, mesh=mesh)\n"
CLIPPED = """\
        grad_norm = torch.nn.utils.clip_grad_norm_(
            self.model.parameters(), self.config.max_grad_norm
        ).full_tensor()
"""
SYNCED = "self.model.set_requires_gradient_sync(is_last)"


def test_an_optimizer_built_before_sharding(against: Verify) -> None:
    report = against((SHARDED + BUILT, BUILT + SHARDED))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "optimizer-alive")
    assert "AdamW was built before fully_shard: 39 of 39 parameters" in report.says
    assert "trains nothing" in report.says


def test_a_state_asked_for_before_the_first_step(against: Verify) -> None:
    """Torch takes a step of zeros then, so that Adam is one step ahead in all that follow."""
    early = (
        "    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict\n\n"
        "    get_optimizer_state_dict(model, optimizer)\n"
    )
    report = against((BUILT, BUILT + early))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "optimizer-state")


def test_no_root_call(against: Verify) -> None:
    report = against(("finetune/parallel.py", ROOT, ""))
    assert (report.exit_code, failed(report)) == (1, "placement")
    assert "embed.weight" in report.says
    assert "fully_shard(model) on the root" in " ".join(text.render(report).split())


def test_clipping_dropped(against: Verify) -> None:
    norm = "        grad_norm = torch.ones(())\n"
    report = against(("finetune/loop.py", CLIPPED, norm))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "clipping")
    assert "no clip call after" in report.says


def test_no_sync_dropped(against: Verify) -> None:
    report = against(("finetune/loop.py", SYNCED, "pass"))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "collectives")
    assert "5 reduce-scatter calls before, 10 after" in report.says
    assert "no_sync was lost" in text.render(report)


def test_a_learning_rate_one_percent_higher(against: Verify) -> None:
    report = against(("finetune/optim.py", "lr=config.lr,", "lr=config.lr * 1.01,"))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "settings")
    assert "for 39 of 39 parameters" in report.says


# --- scripts that tell nothing about training -----------------------------------------------------

ODD_SCRIPTS = {
    "crashes": ("raise RuntimeError('no data')\n", "before_failed", "RuntimeError: no data"),
    "hangs": (
        "import time\nimport torch\n\n\ndef wait():\n    time.sleep(600)\n\n\nwait()\n",
        "before_hung",
        "no rank made any progress",
    ),
    "records nothing": (
        "import torch\nprint('done')\n",
        "unrecorded",
        "no collective, no backward and no optimizer step was seen",
    ),
}


@pytest.mark.parametrize(("source", "verdict", "says"), ODD_SCRIPTS.values(), ids=ODD_SCRIPTS)
def test_a_script_that_cannot_be_judged_is_not_said_to_train_differently(
    source: str,
    verdict: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        (tmp_path / side / "train.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    answer = answering(capfdbinary)(
        *("verify", "train.py", "--before", "before", "--after", "after"),
        *("--timeout", "4", "-o", "report.json"),
    )
    assert answer.code == 2
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"] == verdict
    last = answer.out[answer.out.index("VERDICT") :]
    assert last.startswith("VERDICT  UNDECIDED  ")
    assert says in " ".join(last.split())
    if verdict == "before_hung":
        assert "train.py:6 in wait" in answer.out
