"""Answer whether two versions of a program train the same."""

from __future__ import annotations

import dataclasses
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fsdp_migrate.verify.compare.gate import Gate, Status, plural
from fsdp_migrate.verify.compare.judge import Judgement
from fsdp_migrate.verify.compare.observed import Observed
from fsdp_migrate.verify.events import Event, Role, ignore
from fsdp_migrate.verify.launch.launcher import Launcher
from fsdp_migrate.verify.launch.start import Runner
from fsdp_migrate.verify.launch.warm import WarmServer
from fsdp_migrate.verify.plan import Plan, PlanError
from fsdp_migrate.verify.report.compose import Answer, compose
from fsdp_migrate.verify.report.model import Report, Verdict
from fsdp_migrate.verify.trial.bench import Bench, Settled
from fsdp_migrate.verify.trial.pair import Pair, Setting, compare_versions
from fsdp_migrate.verify.trial.reports import compare_reported
from fsdp_migrate.verify.trial.resume import RESUMED, compare_resumed, compare_saved
from fsdp_migrate.verify.trial.timing import measure_times


def verify(
    plan: Plan,
    *,
    on_event: Callable[[Event], None] = ignore,
    server: WarmServer | None = None,
) -> Report:
    """Run both versions of a program and answer whether they train the same.

    Programs are executed, in scratch copies of their trees; nothing is written into the trees.
    Takes as long as two runs of the program, or four when it computes in 16 bits, and one or two
    more where the noise twin has to tell how far rounding carries. A ``server`` from outside saves
    start-up time when many verifications follow one another.

    Raises :class:`PlanError` when a run cannot be started.
    """
    started = time.monotonic()
    room = _room(plan)
    runner = Runner(plan, room, on_event, server)
    bench = Bench(plan, room, runner, on_event)
    try:
        answer = _decide(bench)
        return compose(bench, answer, seconds=time.monotonic() - started)
    finally:
        runner.close()
        if plan.keep is None:
            shutil.rmtree(room, ignore_errors=True)


def observe(
    plan: Plan, *, on_event: Callable[[Event], None] = ignore, server: WarmServer | None = None
) -> Observed | None:
    """Run the original alone, as :func:`verify` does first, and say what it did with FSDP1; None
    where it did not run. With a ``cache`` :func:`verify` uses the recording again.

    Raises :class:`PlanError` when it cannot be started.
    """
    room = _room(plan)
    runner = Runner(plan, room, on_event, server)
    bench = Bench(plan, room, runner, on_event)
    setting = Setting(
        nproc=plan.nproc, args=(*plan.args, *plan.variants[0]), to_the_end=plan.to_the_end
    )
    try:
        return bench.record(setting.job(Role.BEFORE)).observed
    except Settled:
        return None
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


def _decide(bench: Bench) -> Answer:
    """Verify in every setting that was asked for; the first that is not a pass decides."""
    plan = bench.plan
    pairs: list[Pair] = []
    settings = itertools.product((plan.nproc, *plan.worlds), plan.variants)
    for nproc, variant in settings:
        label = f"-{len(pairs)}" if pairs else ""
        setting = Setting(
            label=label, nproc=nproc, args=(*plan.args, *variant), to_the_end=plan.to_the_end
        )
        try:
            pair = compare_versions(bench, setting)
        except Settled as settled:
            where = _where(plan, nproc, variant)
            return Answer(
                settled.verdict, where + settled.says, pairs, settled.judgement, label=label
            )
        pairs.append(pair)
        verdict, says = _verdict(pair.judgement, _where(plan, nproc, variant))
        passes = verdict in (Verdict.SAME, Verdict.SAME_AT_OTHER_COST)
        if not passes and not _files_may_tell(pair.judgement):
            return Answer(verdict, says, pairs, pair.judgement, label=label)
    try:
        left = (compare_reported(bench, pairs[0]), compare_saved(bench, pairs[0]))
    except Settled as settled:
        return Answer(settled.verdict, settled.says, pairs, pairs[0].judgement)
    extra = tuple(gate for gate in left if gate is not None)
    if plan.resume is not None and not any(gate.status is Status.FAIL for gate in extra):
        try:
            extra = (*extra, *_resumed(bench, pairs[0]))
        except Settled as settled:
            gates = settled.judgement.gates if settled.judgement else ()
            judgement = Judgement((*pairs[0].judgement.gates, *extra, *gates))
            return Answer(settled.verdict, settled.says, pairs, judgement)
    if plan.timing:
        extra = (*extra, measure_times(bench, pairs[0]))
    judgement = Judgement((*pairs[0].judgement.gates, *extra))
    verdict, says = _verdict(judgement)
    if verdict not in (Verdict.SAME, Verdict.SAME_AT_OTHER_COST):
        return Answer(verdict, says, pairs, judgement)
    for number, pair in enumerate(pairs):
        cost, says = _verdict(pair.judgement)
        if cost is not Verdict.SAME:
            label = pair.setting.label
            decisive = pair.judgement if number else judgement
            return Answer(cost, f"{says}; {pair.extent}", pairs, decisive, label=label)
    checks = len(extra) + sum(len(pair.judgement.gates) for pair in pairs)
    worlds = " and ".join(dict.fromkeys(str(pair.evidence.before.world) for pair in pairs))
    ranks = "1 rank" if worlds == "1" else f"{worlds} ranks"
    says = f"{pairs[0].extent}, {ranks}, {checks} checks"
    if len(plan.variants) > 1:
        says += ", with " + " and with ".join(" ".join(variant) for variant in plan.variants)
    if plan.resume is not None:
        says += ", resumed from a checkpoint of the original as well"
    return Answer(Verdict.SAME, says, pairs, judgement)


def _files_may_tell(judgement: Judgement) -> bool:
    """Whether nothing is open but tensors kept besides, which saved files may hold as well."""
    undecided = {gate.key for gate in judgement.gates if gate.status is Status.VOID}
    return judgement.first_failure is None and undecided == {"held"}


def _where(plan: Plan, nproc: int, variant: tuple[str, ...]) -> str:
    """Which of several comparisons, as the beginning of a sentence."""
    parts = [f"with {plural(nproc, 'rank')}"] if plan.worlds else []
    parts += [" ".join(variant)] if len(plan.variants) > 1 else []
    return f"{', '.join(parts)}: " if parts else ""


def _resumed(bench: Bench, first: Pair) -> tuple[Gate, ...]:
    """The gates about resumed runs."""
    pair = compare_resumed(bench, first)
    return tuple(
        dataclasses.replace(gate, part=", ".join(filter(None, (RESUMED, gate.part))))
        for gate in pair.judgement.gates
    )


def _verdict(judgement: Judgement, where: str = "") -> tuple[Verdict, str]:
    failure, void = judgement.first_failure, judgement.first_void
    if failure is not None:
        part = f" ({failure.part})" if failure.part else ""
        return Verdict.DIFFERENT, f"{where}{failure.title}{part}: {failure.says}"
    if void is not None:
        return Verdict.INCONCLUSIVE, f"{where}{void.title}: {void.says}"
    cost = judgement.first_cost
    if cost is not None:
        return Verdict.SAME_AT_OTHER_COST, f"{where}{cost.title}: {cost.says}"
    return Verdict.SAME, ""
