"""Correct migrations, all of which have to pass.

``python -m tests.verify.pairs`` verifies them all and renews the table in ``docs/pairs.md``; with
numbers after it (``5 12``), only those, and nothing is written.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fsdp_migrate.cli.study import study
from fsdp_migrate.verify.launch.start import warm_server
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.report.against_sites import against_sites
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.run import verify
from tests.helpers.migrating import files, migrated

FIXTURES = Path(__file__).parents[2] / "fixtures"
DOCUMENT = Path(__file__).parents[2] / "docs" / "pairs.md"


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A program of the fixtures, and how it is run. Where there is no ``after`` beside the program,
    the tool migrates it."""

    program: str
    args: tuple[str, ...] = ()
    nproc: int = 2
    steps: int = 8
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [self.program, *self.args, f"on {self.nproc}"]
        if "seed" in self.plan:
            words.append(f"seed {self.plan['seed']}")
        return " ".join(words)

    @property
    def by_hand(self) -> bool:
        """Whether the migration was written by hand."""
        return (FIXTURES / self.program / "after").is_dir() and self.program != "demo"


def of(program: str, *args: str, nproc: int = 2, steps: int = 8, **plan: Any) -> Pair:
    return Pair(program=program, args=args, nproc=nproc, steps=steps, plan=plan)


HUB = ("llama", "gpt2", "vit", "t5")
PACKAGED = {"script": "module:trainer.main", "workdir": "src"}

PAIRS: tuple[Pair, ...] = (
    *(of("programs/causal", nproc=n, steps=12) for n in (1, 2, 3, 4)),
    *(of("programs/causal", "--optimizer", "sgd", nproc=n) for n in (2, 4)),
    *(of("programs/causal", "--precision", "bf16", nproc=n, steps=12) for n in (2, 4)),
    of("programs/causal", "--precision", "bf16", "--accumulate", "1"),
    of("programs/causal", "--precision", "bf16", "--optimizer", "sgd"),
    *(of("programs/causal", "--accumulate", n) for n in ("1", "4")),
    of("programs/causal", "--no-clip", "--optimizer", "sgd"),
    of("programs/causal", "--depth", "6", "--width", "64", steps=20),
    *(of("programs/causal", seed=seed) for seed in (1, 2, 3)),
    *(of("programs/uneven", nproc=n) for n in (2, 3, 4)),
    *(of("programs/uneven", seed=seed) for seed in (1, 2)),
    *(of("programs/packaged", "8", nproc=n, **PACKAGED) for n in (2, 4)),
    *(of("programs/meta", nproc=n) for n in (2, 4)),
    *(of("programs/scaled", dtype, nproc=n) for dtype in ("fp16", "bf16") for n in (2, 4)),
    of("programs/adversarial", steps=20),
    # On three ranks rounding takes an activation across the kink of a ReLU in step 12.
    of("programs/adversarial", nproc=3, steps=10),
    *(of("programs/lifecycle", nproc=n) for n in (2, 4)),
    of("programs/hybrid", nproc=4, steps=10),
    *(of("programs/conditional", "--kind", kind, steps=6) for kind in ("never", "steps", "ranks")),
    *(of("programs/hub", "--model", name, steps=6) for name in HUB),
    *(of("programs/hub", "--model", name, "--precision", "bf16", steps=6) for name in HUB),
    of("programs/spawned", "--port", "29611", steps=6),
    *(of("demo", "--steps", "20", nproc=n, steps=10) for n in (1, 2, 4)),
    of("demo", "--precision", "bf16"),
    of("demo", "--precision", "bf16", "--accumulate", "1"),
    *(of("rewriting/checkpoints", "--optimizer", name) for name in ("adamw", "sgd", "momentum")),
    of("rewriting/distributed"),
    of("rewriting/gathering"),
    of("rewriting/ignored"),
    *(of("rewriting/loop", "--kind", kind) for kind in ("plain", "grad_op", "scaled")),
    *(of("rewriting/manual", "--half", half) for half in "01"),
    *(
        of("rewriting/meshes", "--kind", kind)
        for kind in ("device", "world", "group", "slice", "hybrid", "zero2", "none")
    ),
    of("rewriting/ordering"),
    *(
        of("rewriting/policies", "--policy", policy)
        for policy in ("classes", "lambda", "custom", "or", "size")
    ),
    of("rewriting/precision"),
    *(of("rewriting/rank0", "--sync", sync) for sync in "01"),
    *(of("rewriting/states", "--kind", kind) for kind in ("trainer", "sharded", "statics", "kept")),
    *(
        of("rewriting/strategies", "--strategy", strategy)
        # Not SHARD_GRAD_OP: which strategy it is shows only when it runs, so gathering between
        # micro-batches is left for review, and verify says that it differs.
        for strategy in ("FULL_SHARD", "NO_SHARD")
    ),
    *(of("rewriting/weights", "--when", when) for when in ("always", "sync")),
    *(
        of("rewriting/wrapped", "--kind", kind)
        for kind in ("checkpointed", "compiled", "low_rank", "low_rank_flat")
    ),
)


# Programs that are left, or of which something is, and verify says so.
REVIEWED = {
    "both": "each rank clips by the norm of its own part (FSDP401)",
    "conditional": "ranks use different parameters (FSDP420); other kinds are above",
    "guarded": "it fails on purpose: one rank calls what all must",
    "stopped": "it is left, but for rewrite --partial",
    "summing": "norms of ranks are added up by hand (FSDP408)",
}
# Programs that cost less than before: an evaluation gathers once less.
CHEAPER = {"rewriting/unwrapping"}
FOUR_RANKS = {"chosen", "groups"}
DEFAULTS = tuple(
    of(f"rewriting/{folder.name}", nproc=4 if folder.name in FOUR_RANKS else 2)
    for folder in sorted((FIXTURES / "rewriting").iterdir())
    if folder.name not in REVIEWED
)
PAIRS += tuple(pair for pair in DEFAULTS if pair not in PAIRS)


def passes(pair: Pair, folder: Path, **settings: Any) -> Report:
    """Verify one; ``folder`` is for what the tool makes of it."""
    home = FIXTURES / pair.program
    before = home / "before" if (home / "before").is_dir() else home
    after = home / "after"
    if not pair.by_hand:
        after = folder
        for name, source in migrated(before).items():
            (after / name).parent.mkdir(parents=True, exist_ok=True)
            (after / name).write_text(source, encoding="utf-8")
        assert files(after) != files(before)
    plan = {
        "script": "train.py",
        "args": pair.args,
        "nproc": pair.nproc,
        "max_steps": pair.steps,
        **pair.plan,
    }
    server: WarmServer | None = settings.pop("server", None)
    report = verify(Plan(before=before, after=after, **{**plan, **settings}), server=server)
    return against_sites(report, _study(before))


_study = cache(study)


def is_right(pair: Pair, report: Report) -> bool:
    """Whether the verdict is what a correct migration gets."""
    cheaper = pair.program in CHEAPER
    if "not seen by the rewriter" in report.caveat:  # the lines that never ran are no defect
        return False
    return report.verdict is (Verdict.SAME_AT_OTHER_COST if cheaper else Verdict.SAME)


def closest(report: Report) -> float:
    """The largest share of its allowance that any gate measured."""
    shares = [g.measured / g.allowed for g in report.gates if g.measured and g.allowed]
    return max(shares, default=0.0)


def table(reports: Sequence[tuple[Pair, Report]]) -> str:
    lines = [
        "| program | migrated | ranks | steps | verdict | checks | closest to its allowance | s |",
        "|---|---|--:|--:|---|--:|--:|--:|",
    ]
    for pair, report in reports:
        seed = f", seed {pair.plan['seed']}" if "seed" in pair.plan else ""
        lines.append(
            f"| {' '.join([pair.program, *pair.args])}{seed} | "
            f"{'by hand' if pair.by_hand else 'by the tool'} | {pair.nproc} | {len(report.rows)} | "
            f"{report.verdict.title} | {len(report.gates)} | {100 * closest(report):.0f} % | "
            f"{report.seconds:.0f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    chosen = [PAIRS[int(word) - 1] for word in arguments] or list(PAIRS)
    reports = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with warm_server(sys.executable, folder) as server:
            for pair in chosen:
                number = PAIRS.index(pair) + 1
                report = passes(pair, folder / f"pair-{number}", server=server)
                reports.append((pair, report))
                print(
                    f"{number:>3} {report.verdict.word:<9} {100 * closest(report):>4.0f} %  "
                    f"{report.seconds:>5.1f} s  {pair}",
                    flush=True,
                )
                if not is_right(pair, report):
                    print(f"      {report.says}", flush=True)
    passed = sum(is_right(*each) for each in reports)
    print(f"{passed} of {len(reports)} passed")
    if not arguments:
        from tests.tools.documents import between

        text = DOCUMENT.read_text(encoding="utf-8")
        DOCUMENT.write_text(between("pairs", text, table(reports)), encoding="utf-8")
    return 0 if passed == len(reports) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
