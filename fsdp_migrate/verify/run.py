"""Answer whether two versions of a program train the same."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fsdp_migrate.verify.compare.gate import plural
from fsdp_migrate.verify.compare.judge import Judgement
from fsdp_migrate.verify.events import Event, ignore
from fsdp_migrate.verify.launch.launcher import Launcher
from fsdp_migrate.verify.launch.start import Runner
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan, PlanError
from fsdp_migrate.verify.report.compose import compose
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.trial.bench import Bench, Settled
from fsdp_migrate.verify.trial.pair import Pair, Setting, compare


def verify(
    plan: Plan,
    *,
    on_event: Callable[[Event], None] = ignore,
    server: WarmServer | None = None,
) -> Report:
    """Run both versions of a program and answer whether they train the same.

    Programs are executed, in scratch copies of their trees; nothing is written into the trees.
    Takes as long as three runs of the program, or six when it computes in 16 bits, and less when an
    exact question already finds a cause. A ``server`` from outside saves start-up time when many
    verifications follow one another.

    Raises :class:`PlanError` when a run cannot be started.
    """
    started = time.monotonic()
    room = _room(plan)
    runner = Runner(plan, room, on_event, server)
    bench = Bench(plan, room, runner, on_event)
    try:
        verdict, says, pairs, judgement = _decide(bench)
        return compose(
            bench,
            verdict=verdict,
            says=says,
            pairs=pairs,
            judgement=judgement,
            seconds=time.monotonic() - started,
        )
    finally:
        runner.close()
        if plan.keep is None:
            shutil.rmtree(room, ignore_errors=True)


def _room(plan: Plan) -> Path:
    """A new folder for everything that the runs write."""
    launcher = Launcher.of(plan)
    if launcher.nodes > 1 and plan.keep is None:
        raise PlanError("several machines need a folder that all of them see: give --keep")
    if plan.keep is None:
        return Path(tempfile.mkdtemp(prefix="verify-"))
    try:
        plan.keep.mkdir(parents=True, exist_ok=True)
        if launcher.nodes == 1:
            return Path(tempfile.mkdtemp(prefix="verify-", dir=plan.keep))
        shared = plan.keep / f"verify-{launcher.meeting}"
        shared.mkdir(exist_ok=True)
        return shared
    except OSError as error:
        raise PlanError(f"{plan.keep} cannot be used: {error}") from None


def _decide(bench: Bench) -> tuple[Verdict, str, list[Pair], Judgement | None]:
    plan = bench.plan
    pairs: list[Pair] = []
    try:
        pair = compare(bench, Setting(nproc=plan.nproc, args=plan.args))
        pairs.append(pair)
    except Settled as settled:
        return settled.verdict, settled.says, pairs, settled.judgement
    judgement = pair.judgement
    failure, void = judgement.first_failure, judgement.first_void
    if failure is not None:
        part = f" ({failure.part})" if failure.part else ""
        says = f"{failure.title}{part}: {failure.says}"
        return Verdict.DIFFERENT, says, pairs, judgement
    if void is not None:
        return Verdict.INCONCLUSIVE, f"{void.title}: {void.says}", pairs, judgement
    ranks = plural(pair.evidence.before.world, "rank")
    says = f"{plural(pair.evidence.steps, 'step')}, {ranks}, {len(judgement.gates)} checks"
    return Verdict.SAME, says, pairs, judgement
