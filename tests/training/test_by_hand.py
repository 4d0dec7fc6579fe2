"""Programs migrated by hand and by the tool: both train like FSDP1, and load what that saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.training.programs import FIXTURES, Launcher, Run, accounted, compare, pair

pytestmark = pytest.mark.train

BY_HAND = FIXTURES / "by_hand"
HALF = 1e-3  # of bf16's relative precision of 4e-3, in mean losses and norms


@dataclass(frozen=True)
class Case:
    """One way to call a program; ``{out}`` in an argument is a directory of its own."""

    program: str
    arguments: tuple[str, ...] = ()
    tolerance: float = 1e-6
    save: tuple[str, ...] = ()  # what makes it leave a checkpoint in {out}
    resume: tuple[str, ...] = ()  # what makes it go on from there
    ranks: int = 2

    def __str__(self) -> str:
        return " ".join((self.program, *self.arguments))


CASES = (
    Case("ddp_or_fsdp", save=("--output", "{out}"), resume=("--finetune", "{out}/model.pth")),
    Case("ddp_or_fsdp", ("--engine", "ddp")),
    Case(
        "diffusion_ema",
        save=("--results-dir", "{out}", "--max-steps", "4"),
        resume=("--resume", "{out}/0000004.pt"),
    ),
    Case("diffusion_ema", ("--data-parallel", "sdp")),
    Case("diffusion_ema", ("--precision", "bf16"), HALF),
    Case(
        "distill",
        save=("--dump_path", "{out}", "--n_iter", "4"),
        resume=("--student_pretrained_weights", "{out}/checkpoint.pth"),
    ),
    Case("distill", ("--bf16",), HALF),
    Case(
        "lm_pretrain",
        save=("--out_dir", "{out}", "--max_steps", "4"),
        resume=("--resume", "{out}/step_4.pt"),
    ),
    Case("lm_pretrain", ("--precision", "bf16"), HALF),
    Case("lm_pretrain", ("--precision", "bf16_mixed"), HALF),
    Case(
        "lora_finetune",
        save=("--output_dir", "{out}", "--max_steps", "2"),
        resume=("--adapters", "{out}"),
    ),
    Case("lora_finetune", ("--bf16",), HALF),
    Case(
        "manual_wrap",
        ("--checkpoint-activations",),
        save=("--save-dir", "{out}", "--max-update", "2"),
        resume=("--restore-file", "{out}/checkpoint_2.pt"),
    ),
    Case("manual_wrap", ("--bf16", "--fp32-reduce-scatter"), 5 * HALF),
    Case(
        "myproj",
        save=("--save", "{out}/last.pt", "--steps", "3"),
        resume=("--resume", "{out}/last.pt"),
    ),
    Case("myproj", ("--precision", "fp16"), HALF),
    Case("myproj", ("--shard-size", "2"), ranks=4),
    Case(
        "offload_accumulate",
        save=("--output_dir", "{out}", "--max_steps", "3"),
        resume=("--resume_dir", "{out}"),
    ),
    Case("offload_accumulate", ("--zero2",)),
    Case("offload_accumulate", ("--bf16",), HALF),
    Case(
        "sharded_checkpoints",
        save=("--save_folder", "{out}", "--max_steps", "2"),
        resume=("--save_folder", "{out}", "--save_interval", "1000"),
    ),
    Case("sharded_checkpoints", ("--sharding_strategy", "SHARD_GRAD_OP")),
    Case("sharded_checkpoints", ("--precision", "amp_bf16"), HALF),
    Case(
        "strategy_table",
        save=("output_dir={out}", "epochs=1"),
        resume=("resume={out}/epoch_1.pt",),
    ),
    Case("strategy_table", ("fsdp.strategy=grad_op", "fsdp.forward_prefetch=1")),
    Case("strategy_table", ("fsdp.strategy=none", "fsdp.sync_module_states=1")),
    Case("strategy_table", ("fsdp.precision=bf16",), HALF),
    Case(
        "vl_towers",
        save=("--run_name", "{out}", "--num_steps", "3"),
        resume=("--resume_from_checkpoint", "{out}/checkpoint.pt"),
    ),
    Case(
        "vl_towers",
        ("--shard_vision_tower",),
        save=("--run_name", "{out}", "--num_steps", "3"),
        resume=("--resume_from_checkpoint", "{out}/checkpoint.pt"),
    ),
    Case("vl_towers", ("--precision", "bf16"), HALF),
    Case("vl_towers", ("--precision", "bf16", "--shard_vision_tower"), HALF),
    Case("vl_towers", ("--precision", "amp_bf16"), HALF),
    Case("weight_averaging", save=("--output", "{out}.pt"), resume=("--init", "{out}.pt")),
    Case("weight_averaging", ("--bf16",), HALF),
)
# A program that is written beside its migration (others refer to a fixture) has both directories.
PAIRS = sorted(d.parent.name for d in BY_HAND.glob("*/before") if (d.parent / "after").is_dir())
REST = tuple(Case(name) for name in PAIRS if name not in {case.program for case in CASES})


Scripts = Callable[[str], dict[str, Path]]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    """The versions of a program: FSDP1's, the hand's and the tool's."""

    @cache
    def of(program: str) -> dict[str, Path]:
        found = {v: BY_HAND / program / v / "train.py" for v in ("before", "after")}
        directory = tmp_path_factory.mktemp(program)
        found["tool"] = pair(f"by_hand/{program}/before", directory).after
        return found

    return of


@pytest.mark.parametrize("case", CASES + REST, ids=str)
def test_trains_the_same(case: Case, launcher: Launcher, scripts: Scripts) -> None:
    runs = {
        version: launcher.script(
            script,
            *case.arguments,
            fsdp1="allow" if version == "before" else "forbid",
            ranks=case.ranks,
        )
        for version, script in scripts(case.program).items()
    }
    before = runs.pop("before")
    assert not accounted(before, f"by_hand/{case.program}/before").caveat
    for after in runs.values():
        assert compare(before, after, tolerance=case.tolerance) >= 8


@pytest.mark.parametrize("case", [case for case in CASES if case.save], ids=str)
def test_resumes_the_same(case: Case, launcher: Launcher, scripts: Scripts, tmp_path: Path) -> None:
    """All go on from what FSDP1 saved; what a later version saves is as good to it."""
    versions = scripts(case.program)

    def run(version: str, arguments: tuple[str, ...], saved_by: str) -> Run:
        out = str(tmp_path / saved_by)
        every = [a.replace("{out}", out) for a in (*case.arguments, *arguments)]
        fsdp1 = "allow" if version == "before" else "forbid"
        return launcher.script(versions[version], *every, fsdp1=fsdp1, ranks=case.ranks)

    for version in versions:
        run(version, case.save, version)
    expected = run("before", case.resume, "before")
    assert not accounted(expected, f"by_hand/{case.program}/before").caveat
    for version in versions:
        for saved_by in {"before", version} if version != "before" else ():
            after = run(version, case.resume, saved_by)
            assert compare(expected, after, tolerance=case.tolerance) >= 4
