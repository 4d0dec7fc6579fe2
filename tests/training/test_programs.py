"""Programs before and after the rewrite: same losses at every step, same models at the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.training.programs import Launcher, Pair, accounted, compare, compare_models, pair

pytestmark = pytest.mark.train


@dataclass(frozen=True)
class Case:
    """One way to call a program of the fixtures."""

    program: str
    arguments: tuple[str, ...] = ()
    tolerance: float = 1e-6
    atol: float = 1e-7  # of trained parameters
    printed: float = 1e-9  # absolute, of what is printed: sums of float32 that cancel need more
    ranks: int = 2
    numbers: int = 3  # at least so many are printed, by all ranks together
    target: str = ""  # the release of torch that the later version is for

    def __str__(self) -> str:
        name = " ".join((self.program, *self.arguments))
        return name if self.ranks == 2 else f"{name} on {self.ranks} ranks"


HALF = 1e-3  # of bf16's relative precision of 4e-3, in mean losses

CASES = (
    *(Case("accumulating", ("--kind", kind)) for kind in ("full", "gathered")),
    Case("annotated", (), 2e-6),
    Case("annotated", ("--half", "1"), HALF),
    Case("annotated", ("--half", "1", "--twice", "1"), HALF),
    Case("annotated", ("--twice", "1"), 2e-6),
    *(Case("asked", ("--kind", kind), HALF) for kind in ("buffers", "inputs")),
    *(
        Case("averaging", ("--kind", kind))
        for kind in ("data", "in place", "moved", "moved in place", "handles", "whole")
    ),
    *(Case("branches", ("--version", version)) for version in "12"),
    *(Case("callee", ("--kind", kind)) for kind in ("sharded", "replicated")),
    *(Case("either", ("--kind", kind)) for kind in ("sharded", "replicated")),
    *(Case("checkpoints", ("--optimizer", name)) for name in ("adamw", "sgd", "momentum")),
    *(Case("chosen", ("--kind", k), ranks=4) for k in ("inner", "both", "zero2", "world")),
    *(Case("configured", ("--strategy", s)) for s in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
    *(Case("contexts", ("--half", half), HALF if half == "1" else 1e-6) for half in "01"),
    Case("declared"),
    Case("left_alone"),
    Case("derived", (), HALF),
    *(
        Case("enabled", ("--how", how, "--half", half), HALF if half == "1" else 1e-6)
        for how in (
            *("by_hand", "by_policy", "made", "by_dictionary"),
            *("as_whole", "with_units", "with_parts"),
        )
        for half in "01"
    ),
    *(
        Case("entered", ("--how", how))
        for how in ("manager", "FULL_STATE_DICT", "SHARDED_STATE_DICT", "function", "stack")
    ),
    *(Case("entered", ("--how", how)) for how in ("name", "chosen", "neither", "after a stack")),
    *(Case("entered", ("--how", how)) for how in ("yields early", "does not", "called")),
    *(Case("entered", ("--how", how)) for how in ("not called", "elsewhere", "elsewhere by name")),
    *(Case("entered", ("--how", how)) for how in ("none", "some", "again", "entered")),
    Case("entered", ("--how", "before it is set")),
    *(
        Case("fields", ("--kind", kind, "--cast", cast), HALF, target=target)
        for kind, cast, target in (("batch", "0", ""), ("names", "1", ""), ("batch", "0", "2.13"))
    ),
    *(Case("attributes", ("--kind", k)) for k in ("known", "settings", "original", "flat")),
    Case("both"),
    Case("classes"),
    *(
        Case("dictionaries", ("--how", how, "--half", half), HALF if half == "1" else 1e-6)
        for how in (
            *("by_hand", "by_policy", "by_function", "by_partial", "of_the_file"),
            *("by_branch", "by_default", "by_return"),
        )
        for half in "01"
    ),
    *(Case("conditional", ("--kind", k), target="2.13") for k in ("steps", "ranks", "never")),
    Case("distributed"),
    Case("gathering"),
    *(Case("groups", ("--kind", kind), ranks=4) for kind in ("group", "slice", "hybrid")),
    *(Case("holders", ("--all", all_, "--rank0", "1")) for all_ in "01"),
    Case("holders"),
    Case("ignored"),
    # Ranks have norms of their own then, and scale other parts of a parameter by them.
    Case("ignored", ("--trainable", "1"), 5e-4),
    *(Case("loop", ("--kind", kind)) for kind in ("plain", "grad_op", "scaled")),
    Case("inputs"),
    # Three gradients meet in a hidden state, and hooks change the order in which bf16 adds them.
    Case("inputs", ("--half", "1"), HALF, atol=1e-4),
    Case("manual"),
    Case("manual", ("--half", "1"), HALF),
    *(
        Case("methods", ("--kind", kind), target="2.13")
        for kind in ("encode", "auxiliary", "generate", "gathered", "replaced")
    ),
    Case("methods", ("--kind", "half"), HALF, target="2.13"),
    *(
        Case("meshes", ("--kind", kind))
        for kind in ("device", "world", "group", "slice", "hybrid", "zero2", "none")
    ),
    *(Case("meshes", ("--kind", kind), ranks=4) for kind in ("device", "hybrid", "zero2", "none")),
    Case("named"),
    Case("named", ("--low", "1"), HALF),
    *(Case("older", ("--zero2", zero2)) for zero2 in "01"),
    *(Case("ordering", ("--kind", kind)) for kind in ("early", "listed", "late", "trainer")),
    Case("parts", (), HALF),
    *(Case("passed_over", ("--kind", kind)) for kind in ("blocks", "others", "wrappers")),
    *(Case("picked", ("--kind", kind), HALF) for kind in ("settings", "none")),
    *(
        Case("policies", ("--policy", policy))
        for policy in ("classes", "lambda", "custom", "or", "size")
    ),
    Case("precision", (), HALF),
    *(
        Case("put_together", ("--strategy", strategy, "--sync", sync))
        for strategy, sync in (("full", "0"), ("grads", "1"), ("none", "1"))
    ),
    Case("put_together", ("--strategy", "none", "--judge", "NO_SHARD"), ranks=4),
    Case("put_together", ("--half", "1", "--prefetch", "post"), HALF),
    *(Case("rank0", ("--sync", sync)) for sync in "01"),
    Case("reached"),
    Case("replicated"),
    Case("selected"),
    *(
        Case("shared", ("--kind", kind, "--strategy", strategy), ranks=ranks)
        for kind, strategy, ranks in (
            ("none", "FULL_SHARD", 2),
            ("one", "SHARD_GRAD_OP", 2),
            ("one", "NO_SHARD", 2),
            ("pair", "HYBRID_SHARD", 4),
            ("pair", "_HYBRID_SHARD_ZERO2", 4),
        )
    ),
    *(Case("siblings", ("--state", state), HALF) for state in ("full", "rank0", "default")),
    *(Case("states", ("--kind", kind)) for kind in ("trainer", "sharded", "statics", "kept")),
    *(
        Case("strategies", ("--strategy", strategy))
        for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD")
    ),
    Case("strategies", ("--strategy", "_HYBRID_SHARD_ZERO2")),
    *(Case("registered", ("--states", kind)) for kind in ("full", "sharded")),
    Case("registered", ("--strategy", "SHARD_GRAD_OP")),
    *(
        Case("subclassed", ("--kind", kind), 5e-6, printed=1e-7)
        for kind in ("plain", "wide", "rank0", "counted", "parts")
    ),
    *(Case("subclassed", ("--kind", kind)) for kind in ("saving", "saving on rank 0")),
    *(Case("subclassed", ("--kind", k), HALF, atol=1e-4) for k in ("half", "half parts")),
    *(Case("summing", ("--kind", kind)) for kind in ("model", "groups", "list", "own")),
    Case("thawing"),
    *(Case("unset", ("--kind", k, "--set", set_)) for k in ("full", "sharded") for set_ in "01"),
    Case("unwrapping"),
    Case("versions"),
    Case("versions", ("--version", "2")),
    Case("versions", ("--strategy", "SHARD_GRAD_OP")),
    Case("versions", ("--strategy", "NO_SHARD")),
    *(Case("weights", ("--when", when)) for when in ("always", "sync")),
    *(
        Case("wrapped", ("--kind", kind))
        for kind in ("checkpointed", "compiled", "low_rank", "low_rank_flat")
    ),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trains_the_same(case: Case, launcher: Launcher, tmp_path: Path) -> None:
    both = pair(f"rewriting/{case.program}", tmp_path, case.target)
    before = launcher.script(both.before, *case.arguments, fsdp1="allow", ranks=case.ranks)
    after = launcher.script(both.after, *case.arguments, fsdp1="forbid", ranks=case.ranks)
    assert not accounted(before, f"rewriting/{case.program}").caveat
    found = compare(before, after, tolerance=case.tolerance, atol=case.printed)
    assert found >= case.numbers
    assert compare_models(before, after, tolerance=10 * case.tolerance, atol=case.atol)


def test_what_is_unwrapped_may_be_ddp(launcher: Launcher, tmp_path: Path) -> None:
    both = pair("rewriting/unwrapping", tmp_path)
    before = launcher.script(both.before, "--wrapper", "ddp", fsdp1="allow")
    after = launcher.script(both.after, "--wrapper", "ddp", fsdp1="forbid")
    assert compare(before, after, tolerance=1e-6) >= 8


def test_trains_the_same_through_a_method_alone(launcher: Launcher, tmp_path: Path) -> None:
    """FSDP1's model is never called, so that every layer is the root of its own pass there."""
    both = pair("rewriting/methods", tmp_path, "2.13")
    before = launcher.script(both.before, "--kind", "loss", fsdp1="allow")
    after = launcher.script(both.after, "--kind", "loss", fsdp1="forbid")
    assert compare(before, after) == 20


@pytest.mark.parametrize("kind", ["data", "in place"])
def test_averages_are_exact_between_evaluations(
    kind: str, launcher: Launcher, tmp_path: Path
) -> None:
    """FSDP1 lost what was written to the root's parameters while they were gathered."""
    both = pair("rewriting/averaging", tmp_path)
    whole = launcher.script(both.before, "--kind", "whole", "--every", "1", fsdp1="allow")
    before = launcher.script(both.before, "--kind", kind, "--every", "1", fsdp1="allow")
    after = launcher.script(both.after, "--kind", kind, "--every", "1", fsdp1="forbid")
    expected = pytest.approx(whole.numbers("mean"), rel=1e-5)
    assert after.numbers("mean") == expected
    assert before.numbers("mean") != expected


def test_parts_that_a_step_leaves_out_differ_before_torch_2_13(
    launcher: Launcher, tmp_path: Path
) -> None:
    """The marker's reason: Adam passes over them, and ranks average gradients of unlike parts."""
    both = pair("rewriting/conditional", tmp_path)
    assert "TODO(fsdp-migrate FSDP420)" in both.text()
    for kind in ("steps", "ranks"):
        before = launcher.script(both.before, "--kind", kind, fsdp1="allow")
        after = launcher.script(both.after, "--kind", kind, fsdp1="forbid")
        losses = before.numbers("step")
        assert losses[:1] == pytest.approx(after.numbers("step")[:1], rel=1e-6)
        assert losses[-1:] != pytest.approx(after.numbers("step")[-1:], rel=1e-3)


@pytest.mark.parametrize("kind", ["listed", "first"])
def test_plain_names_picked_nothing_in_fsdp1(kind: str, launcher: Launcher, tmp_path: Path) -> None:
    """The marker's reason: groups that were empty are not, and others train at their rate."""
    both = pair("rewriting/selected", tmp_path)
    assert both.text().count("TODO(fsdp-migrate FSDP422)") == 1
    before = launcher.script(both.before, "--kind", kind, fsdp1="allow")
    after = launcher.script(both.after, "--kind", kind, fsdp1="forbid")
    assert (before.numbers("slow"), after.numbers("slow")) == ([0], [2])
    losses = before.numbers("loss")
    assert losses[:1] == pytest.approx(after.numbers("loss")[:1], rel=1e-6)
    assert losses[-1:] != pytest.approx(after.numbers("loss")[-1:], rel=1e-3)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return pair("demo/before", tmp_path_factory.mktemp("demo"))


@pytest.mark.parametrize(
    ("arguments", "tolerance"),
    [
        ((), 1e-5),  # printed with six digits
        # Rounding in a norm, which other processors do differently.
        (("--precision", "bf16", "--accumulate", "1"), 5 * HALF),
        # FSDP1 adds up micro-batches in bf16, FSDP2 in fp32: the site is marked for review.
        (("--precision", "bf16", "--accumulate", "3"), 10 * HALF),
    ],
    ids=str,
)
def test_the_demo_trains_evaluates_and_resumes_the_same(
    arguments: tuple[str, ...], tolerance: float, demo: Pair, launcher: Launcher, tmp_path: Path
) -> None:
    files = {v: str(tmp_path / f"{v}.pt") for v in ("before", "after")}
    before = launcher.script(
        demo.before, "--steps", "5", "--output", files["before"], *arguments, fsdp1="allow"
    )
    after = launcher.script(
        demo.after, "--steps", "5", "--output", files["after"], *arguments, fsdp1="forbid"
    )
    assert compare(before, after, tolerance=tolerance) == 11
    assert compare_models(before, after, tolerance=tolerance, atol=10 * tolerance)
    further = ("--steps", "8", "--resume", files["before"], *arguments)
    before = launcher.script(demo.before, *further, fsdp1="allow")
    known = accounted(before, "demo/before")
    assert len(known.uses) > 10
    assert not known.caveat
    after = launcher.script(demo.after, *further, fsdp1="forbid")
    assert compare(before, after, tolerance=tolerance) == 6
