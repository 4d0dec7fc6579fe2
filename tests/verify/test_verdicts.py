"""Whole verifications: real programs, trained by torchrun on two ranks, and the verdict on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.compare.gate import Status
from fsdp_migrate.verify.events import Event, Role, Stage
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report import json as as_json
from fsdp_migrate.verify.report import text
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify

from .programs import PROGRAMS, altered, failed, judged

pytestmark = pytest.mark.train

CAUSAL = PROGRAMS / "causal"


@pytest.fixture
def against(baselines: Path, tmp_path: Path, server: WarmServer) -> Callable[..., Report]:
    """Verify ``causal`` against its migration with one statement replaced."""

    def run(*replaced: tuple[str, str], args: tuple[str, ...] = (), **changes: Any) -> Report:
        after = altered(CAUSAL / "after", tmp_path / "after", replaced)
        settings = {"after": after, "args": args, "cache": baselines, "server": server, **changes}
        return judged("causal", **settings)

    return run


# --- correct migrations --------------------------------------------------------------------------


def test_a_correct_migration_passes_under_torchrun() -> None:
    events: list[Event] = []
    plan = Plan(
        before=CAUSAL / "before",
        after=CAUSAL / "after",
        script="train.py",
        max_steps=5,
        launcher="torchrun",
    )
    report = verify(plan, on_event=events.append)
    assert report.verdict is Verdict.SAME, text.render(report)
    assert report.exit_code == 0
    assert len(report.rows) == 5
    assert max(row.difference for row in report.rows) < 1e-5
    assert any("device_id=cpu" in patch for patch in report.patches)
    roles = [event.role for event in events if event.stage is Stage.FINISH]
    assert roles == [Role.BEFORE, Role.AFTER]  # nothing differs, so that no twin is asked
    steps = [e.step for e in events if e.stage is Stage.STEP and e.role is Role.AFTER]
    assert steps == sorted(steps)
    assert steps[-1] == 5
    assert "VERDICT  PASS  same training" in text.render(report)


@pytest.mark.parametrize(
    ("program", "changes"),
    [
        pytest.param("causal", {"args": ("--precision", "bf16")}, id="bf16 with accumulation"),
        pytest.param("causal", {"nproc": 3, "args": ("--optimizer", "sgd")}, id="three ranks, SGD"),
        pytest.param("causal", {"nproc": 1, "max_steps": 3}, id="one rank"),
        pytest.param("uneven", {"max_steps": 9}, id="flat parameters, uneven shards, own end"),
        pytest.param(
            "packaged",
            {"script": "module:trainer.main", "workdir": "src", "args": ("6",), "max_steps": 9},
            id="module, bf16 buffers, checkpoint at the end",
        ),
        pytest.param("adversarial", {"max_steps": 12}, id="three models, two optimizers"),
        pytest.param("scaled", {"max_steps": 7}, id="float16 autocast and gradient scaler"),
    ],
)
def test_other_correct_migrations_pass(
    program: str, changes: dict[str, Any], server: WarmServer
) -> None:
    report = judged(program, server=server, **changes)
    assert report.verdict is Verdict.SAME, text.render(report)
    if changes.get("nproc") == 1:
        assert any("one rank" in limit for limit in report.limits)
    if "bf16" in changes.get("args", ()):  # the original in float32 is noise enough for 16 bits
        ran = {"before", "after", "before-stored-float32", "after-stored-float32"}
        assert set(report.endings) == ran
    assert not list((PROGRAMS / program).glob("**/final.pt"))  # written in the scratch copy only


def test_a_program_that_makes_its_own_ranks_is_started_as_one_process() -> None:
    report = judged("spawned", twin=False, max_steps=3, args=("--port", "29641"))
    assert report.verdict is Verdict.SAME, text.render(report)
    assert report.endings["after"].launcher == "single"
    assert any("makes its own processes" in note for note in report.notes)


def test_times_and_memory_are_measured_in_runs_of_their_own(server: WarmServer) -> None:
    report = judged("causal", server=server, twin=False, max_steps=3, timing=True)
    assert report.verdict is Verdict.SAME, text.render(report)
    assert {"before-timed", "after-timed"} <= set(report.endings)
    (gate,) = (gate for gate in report.gates if gate.key == "timing")
    assert gate.status is Status.NOTE
    assert "ms a step before" in gate.says
    assert "MiB after" in gate.says


# --- planted defects -----------------------------------------------------------------------------

NO_ROOT = ("    fully_shard(model, mesh=mesh, **root)\n", "")
BLOCKS_ONLY = (
    "model.set_requires_gradient_sync(last)",
    "[block.set_requires_gradient_sync(last) for block in model.blocks]",
)
EARLY = (
    "    model = wrap(Transformer(depth=args.depth, width=args.width), args)\n"
    "    optimizer = optimizer_for(model, args)\n",
    "    model = Transformer(depth=args.depth, width=args.width)\n"
    "    optimizer = optimizer_for(model, args)\n"
    "    model = wrap(model, args)\n",
)
CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)"


def test_an_optimizer_built_before_sharding(against: Callable[..., Report]) -> None:
    report = against(EARLY)
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "optimizer-alive")
    assert "AdamW was built before fully_shard: 36 of 36 parameters" in report.says
    assert report.exit_code == 1


def test_no_root_call_without_clipping(against: Callable[..., Report]) -> None:
    report = against(NO_ROOT, BLOCKS_ONLY, args=("--no-clip",))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "placement")
    assert "embed.weight" in report.says


def test_no_root_call_with_clipping_crashes_and_is_explained(
    against: Callable[..., Report],
) -> None:
    report = against(NO_ROOT, BLOCKS_ONLY)
    assert (report.verdict, failed(report)) == (Verdict.AFTER_FAILED, "placement")
    assert "mixed torch.Tensor and DTensor" in report.says
    assert "embed.weight" in report.says
    after = report.endings["after"]
    assert after.failed_rank in (0, 1)
    assert any(line.startswith("train.py:") for line in after.traceback)
    assert report.exit_code == 1


def test_clipping_lost(against: Callable[..., Report]) -> None:
    report = against((CLIP, "pass"))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "clipping")
    assert "no clip call after" in report.says


def test_no_sync_lost(against: Callable[..., Report]) -> None:
    report = against(("            model.set_requires_gradient_sync(last)\n", ""))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "collectives")
    assert "4 reduce-scatter calls before, 8 after" in report.says
    assert report.first_failure is not None
    assert "no_sync" in report.first_failure.hint


def test_a_learning_rate_one_percent_higher(against: Callable[..., Report]) -> None:
    report = against(("AdamW(groups, lr=args.lr)", "AdamW(groups, lr=args.lr * 1.01)"))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "settings")
    assert "lr 0.00025 before, 0.0002525 after, for 36 of 36 parameters" in report.says


def test_weights_not_broadcast(against: Callable[..., Report]) -> None:
    report = against(("        dist.broadcast(tensor.detach(), src=0)\n", "        pass\n"))
    assert (report.verdict, failed(report)) == (Verdict.DIFFERENT, "start")


def test_a_collective_on_one_rank_only_hangs_and_is_explained(
    against: Callable[..., Report],
) -> None:
    report = against(
        ("            if not args.no_clip:\n", "            if not args.no_clip and rank == 0:\n"),
        timeout=10.0,
    )
    assert report.verdict is Verdict.AFTER_HUNG, text.render(report)
    assert report.exit_code == 1
    assert "different collectives" in report.says
    ranks = report.endings["after"].ranks
    assert [trace.rank for trace in ranks] == [0, 1]
    assert "all_reduce" in ranks[0].last
    assert any(frame.startswith("train.py:") for frame in ranks[0].stack)
    assert any("train.py:" in line for line in text.render(report).splitlines())


# --- programs that cannot be judged --------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path, server: WarmServer) -> Callable[..., Report]:
    """Verify two one-file programs."""

    def run(before: str, after: str | None = None, **changes: Any) -> Report:
        for side, source in (("before", before), ("after", before if after is None else after)):
            (tmp_path / side).mkdir()
            (tmp_path / side / "train.py").write_text(source)
        sides = {side: tmp_path / side for side in ("before", "after")}
        settings = {**sides, "script": "train.py", "timeout": 60.0, **changes}
        return verify(Plan(**settings), server=server)

    return run


LOOP = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
for p in model.parameters():
    dist.broadcast(p.data, src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def test_an_original_that_crashes(small: Callable[..., Report]) -> None:
    report = small("def load():\n    raise OSError('no data here')\n\nload()\n", LOOP)
    assert report.verdict is Verdict.BEFORE_FAILED
    assert report.exit_code == 2
    assert report.says == "OSError: no data here"
    assert report.endings["before"].traceback[:2] == (
        "train.py:4 in <module>",
        "train.py:2 in load",
    )
    assert "after" not in report.endings


def test_a_migrated_program_that_does_not_parse(small: Callable[..., Report]) -> None:
    report = small(LOOP, "import torch\nfor\n")
    assert report.verdict is Verdict.AFTER_FAILED
    assert report.says.startswith("SyntaxError")
    assert report.exit_code == 1


def test_a_migrated_program_that_exits(small: Callable[..., Report]) -> None:
    code = "import sys\nprint('bad flag', file=sys.stderr)\nsys.exit(3)\n"
    report = small(LOOP, code)
    assert report.verdict is Verdict.AFTER_FAILED
    assert "ended with exit code 3" in report.says
    assert "bad flag" in report.endings["after"].traceback


def test_a_program_that_never_steps(small: Callable[..., Report]) -> None:
    report = small("import torch\ntorch.ones(1, requires_grad=True).sum().backward()\n")
    assert report.verdict is Verdict.UNRECORDED
    assert report.exit_code == 2
    assert "without a single step of a torch.optim.Optimizer" in report.says


def test_a_program_without_torch(small: Callable[..., Report]) -> None:
    report = small("print('hello')\n")
    assert report.verdict is Verdict.UNRECORDED
    assert "no collective, no backward and no optimizer step was seen" in report.says


def test_injection_defeated_falls_back_to_a_wrapper_and_says_so(
    small: Callable[..., Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fsdp_migrate.verify.inject.SITE", tmp_path / "elsewhere")
    report = small(LOOP, twin=False, launcher="torchrun")
    assert any("through a wrapper script" in note for note in report.notes), text.render(report)
    assert len(report.rows) == 4


def test_the_json_of_a_crash_has_the_whole_traceback(small: Callable[..., Report]) -> None:
    report = small("1 / 0\n", LOOP)
    assert "ZeroDivisionError: division by zero" in as_json.render(report)
    assert report.to_dict()["runs"]["before"]["failed_rank"] in (0, 1)
