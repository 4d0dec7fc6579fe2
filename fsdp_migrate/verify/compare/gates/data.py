"""Do both sides see the same things, in the same mode, with the same settings?"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.verify.compare.coverage import NothingShared, Paired, listed, pair
from fsdp_migrate.verify.compare.envelope import FACTOR, beyond, gap, judge, worst
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.recording import Mode, Recording


def same_inputs(evidence: Evidence) -> Gate:
    """The same data enters the model on every rank, at every step.

    Where rounding-size noise in the weights changes what enters as well, the program computed it
    with the model (a critic's samples come from a generator), and equal bits are not to be had.
    """
    asked = Question("inputs", "inputs")
    seen, computed = 0, 0
    for n, what, rank, mine, theirs in _entered(evidence):
        seen += len(mine)
        if mine == theirs:
            continue
        if _follows(evidence, n, what, rank):
            computed += 1
            continue
        says = f"step {n + 1}, rank {rank}: other data enters {_ENTERING[what]}"
        hint = "sampler, shuffling or seeding of the data differs"
        return asked.fails(says, hint, step=n + 1)
    if not seen:
        return asked.note("no tensor was seen entering the model or leaving a DataLoader")
    if computed:
        says = "what enters follows from the model's own numbers, in the noise twin as well"
        return asked.note(says)
    return asked.passes(f"{seen} fingerprints, all equal")


def inputs_may_follow(evidence: Evidence) -> bool:
    """Whether all inputs that differ may have been computed with the model, which only a noise twin
    can tell: none is in the first step, none comes from a loader."""
    return all(
        n > 0 and what != "batches"
        for n, what, _, mine, theirs in _entered(evidence)
        if mine != theirs
    )


def some_enter_alike(evidence: Evidence) -> bool:
    """Whether in the first step some data is the same and some is not: what is drawn or read is,
    then, and what differs was computed with a model."""
    first = [(mine, theirs) for n, _, _, mine, theirs in _entered(evidence) if n == 0]
    return any(x == y for mine, theirs in first for x, y in zip(mine, theirs, strict=False))


def _entered(
    evidence: Evidence,
) -> Iterator[tuple[int, str, int, tuple[int, ...], tuple[int, ...]]]:
    """Step, kind, rank, and the fingerprints of both sides."""
    for n, a, b, _ in evidence.pairs():
        for what in _ENTERING:
            sides = zip(getattr(a, what), getattr(b, what), strict=True)
            for rank, (mine, theirs) in enumerate(sides):
                yield n, what, rank, mine, theirs


def _follows(evidence: Evidence, n: int, what: str, rank: int) -> bool:
    if evidence.twin is None or n == 0 or what == "batches":
        return False
    mine, noisy = (getattr(side.steps[n], what)[rank] for side in (evidence.before, evidence.twin))
    return bool(mine != noisy)


_ENTERING = {
    "inputs": "the model",
    "batches": "the training loop",
    "evaluation_inputs": "the model in evaluation",
}


def same_modes(evidence: Evidence) -> Gate:
    """The same modules are in training mode whenever the model is trained."""
    asked = Question("mode", "training mode")
    seen = 0
    for n, a, b, _ in evidence.pairs():
        for rank, (x, y) in enumerate(zip(a.modes, b.modes, strict=True)):
            seen += len(x)
            for mine, theirs in zip(x, y, strict=False):
                if mine != theirs:
                    says = (
                        f"step {n + 1}, rank {rank}: {_evaluating(mine)} before, "
                        f"{_evaluating(theirs)} after"
                    )
                    hint = "model.train() or model.eval() was lost, added or moved"
                    return asked.fails(says, hint, step=n + 1)
    if not seen:
        return asked.note("no forward of a sharded model was seen")
    return asked.passes(f"the same modules in {seen} forwards")


def _evaluating(mode: Mode) -> str:
    training, evaluating, _ = mode
    if not evaluating:
        return f"all {training} modules trained"
    return f"{evaluating} of {plural(training + evaluating, 'module')} in evaluation mode"


def same_random(evidence: Evidence) -> Gate:
    """The random number generators are in the same state at every step.

    A difference by itself harms nothing: code that no longer draws numbers for weights it then
    overwrites is fine. It becomes the cause of a failure only if numbers differ later.
    """
    asked = Question("random", "random numbers")
    for n, a, b, _ in evidence.pairs():
        for rank, (x, y) in enumerate(zip(a.random, b.random, strict=True)):
            if x != y:
                says = f"step {n + 1}, rank {rank}: the generator is in another state"
                hint = "seeding, or something that draws random numbers, was added, lost or moved"
                return asked.note(says, hint)
    return asked.passes("same state at every step")


def same_updated_buffers(evidence: Evidence) -> Gate | None:
    """The same buffers are updated, by a forward or otherwise. None where there are none.

    One that is not any more is the cause of other losses; other values may follow from them.
    """
    asked = Question("updated-buffers", "updated buffers")
    updated = 0
    for rank in range(evidence.before.world):
        mine, theirs = (
            _updated(side, rank, evidence.steps) for side in (evidence.before, evidence.after)
        )
        for name in sorted(mine.keys() & theirs.keys()):
            if mine[name] and not theirs[name]:
                says = f"rank {rank}: {name} is never updated, as it was before the migration"
                return asked.fails(says, "what the forward of the module does to it was lost")
            if theirs[name] and not mine[name]:
                return asked.fails(f"rank {rank}: {name} is updated, which it was not before")
        updated += sum(mine.values())
    return asked.passes(f"{updated} on all ranks, the same before and after") if updated else None


def _updated(recording: Recording, rank: int, steps: int) -> dict[str, bool]:
    """Whether each buffer ever has other values than at first; only those that were never cast."""
    first = recording.init.buffers[rank]
    later = [snapshot.buffers[rank] for snapshot in recording.after[:steps]]
    found = {}
    for name, start in first.items():
        values = [snapshot[name] for snapshot in later if name in snapshot]
        if all(value[:2] == start[:2] for value in values):
            found[name] = any(value[2:] != start[2:] for value in values)
    return found


def same_settings(evidence: Evidence) -> Gate:
    """The same optimizers with the same hyperparameters for every parameter, at every step.

    One that the twin has otherwise follows what training computes (a rate from a norm), and may
    differ by what noise does to it.
    """
    asked = Question("settings", "optimizer settings")
    before, after = evidence.before, evidence.after
    # Optimizers that step inside backward come one per parameter, and how many a rank has depends
    # on how parameters are cut; their kind is compared parameter by parameter, below.
    kinds = [[o.kind for o in side.optimizers if not o.inside] for side in (before, after)]
    if kinds[0] != kinds[1]:
        return asked.fails(f"{listed(kinds[0])} before, {listed(kinds[1]) or 'none'} after")
    paired = pair(dict.fromkeys(before.owned()), dict.fromkeys(after.owned()))
    if isinstance(paired, NothingShared):
        return asked.fails(f"optimizer: {paired}")
    if not paired.complete:
        side = "before" if paired.only_before else "after"
        names = sorted(paired.only_before or paired.only_after)
        return asked.fails(f"only {side} in the optimizer: {listed(names)}")
    noise = _noise_in_settings(evidence)
    for n, a, b, _ in evidence.pairs():
        differing = _differing(before.settings(a), after.settings(b))
        for setting, x, y in list(differing):
            # Noise of the size of rounding may leave a number as it is for some steps.
            allowed = max(evidence.floors.norm, FACTOR * noise[n].get(setting, 0.0))
            if setting in noise[-1] and _apart(x, y) <= min(allowed, evidence.floors.ceiling):
                del differing[setting, x, y]
        if differing:
            (setting, x, y), names = max(differing.items(), key=lambda item: len(item[1]))
            says = (
                f"step {n + 1}: {setting} {x} before, {y} after, for {len(names)} of "
                f"{plural(len(paired.both), 'parameter')}: {listed(names)}"
            )
            hint = "parameter groups, learning rate or schedule differ"
            return asked.fails(says, hint, step=n + 1)
    what = listed(kinds[0]) or "optimizers inside backward"
    return asked.passes(f"{what}, same for {plural(len(paired.both), 'parameter')} at every step")


def _noise_in_settings(evidence: Evidence) -> list[dict[str, float]]:
    """By how much noise has changed settings, up to each step."""
    found: list[dict[str, float]] = []
    noise: dict[str, float] = {}
    for _, a, _, twin in evidence.pairs():
        if evidence.twin is not None and twin is not None:
            settings = evidence.before.settings(a), evidence.twin.settings(twin)
            for setting, x, y in _differing(*settings):
                noise[setting] = max(noise.get(setting, 0.0), _apart(x, y))
        found.append(dict(noise))
    return found


def settings_may_follow(evidence: Evidence) -> bool:
    """Whether settings that differ are numbers that change from step to step: by a schedule, or
    because they follow what training computes, which a twin tells."""
    before, after = evidence.before, evidence.after
    pairs = [(before.settings(a), after.settings(b)) for _, a, b, _ in evidence.pairs()]
    values: dict[tuple[str, str], set[str]] = {}
    for settings, _ in pairs:
        for name, each in settings.items():
            for setting, value in each.items():
                values.setdefault((name, setting), set()).add(str(value))
    return any(
        math.isfinite(_apart(x, y)) and len(values[name, setting]) > 1
        for mine, theirs in pairs
        for (setting, x, y), names in _differing(mine, theirs).items()
        for name in names
    )


def _apart(x: str, y: str) -> float:
    """Relative difference of two numbers that were made text; infinite for anything else."""
    try:
        return gap(float(x), float(y))
    except ValueError:
        return math.inf


def same_memory(evidence: Evidence) -> Gate | None:
    """Optimizers that were loaded remember the same. None where none remembers anything.

    What is loaded before the first step must be equal; what is loaded later has gone through
    rounding, and only its names and counts are compared.
    """
    asked = Question("optimizer-state", "optimizer state")
    compared = 0
    for n, a, b, _ in evidence.pairs():
        if not a.states.by_name and not b.states.by_name:
            continue
        mine, theirs = a.states.whole, b.states.whole
        # A state of zeros says nothing that no state at all would not say.
        paired = pair(
            {name: s for name, s in mine.items() if name in theirs or s.norm},
            {name: s for name, s in theirs.items() if name in mine or s.norm},
        )
        if isinstance(paired, NothingShared) and not paired.before and not paired.after:
            continue
        hint = "optimizer states are lost or changed when a checkpoint is loaded"
        if isinstance(paired, NothingShared) or not paired.complete:
            says = f"step {n + 1}: {paired}" if isinstance(paired, NothingShared) else ""
            if isinstance(paired, Paired):
                side = "before" if paired.only_before else "after"
                names = paired.only_before or paired.only_after
                says = f"step {n + 1}: only {side}: {listed(sorted(names))}"
            return asked.fails(says, hint, step=n + 1)
        wrong = [
            name
            for name, (x, y) in paired.both.items()
            if (n == 0 or x.count == 1) and x.distance(y) > _SAME_STATE * x.norm
        ]
        if wrong:
            says = f"step {n + 1}: {len(wrong)} of {len(paired.both)} differ: {listed(wrong)}"
            return asked.fails(says, hint, step=n + 1)
        compared += len(paired.both)
    if not compared:
        return None
    return asked.passes(f"{plural(compared, 'loaded state')} equal")


def same_restored_memory(evidence: Evidence) -> Gate | None:
    """Optimizers that were loaded after some steps remember the same, but for rounding. None where
    there was none."""
    asked = Question("restored-state", "restored optimizer state")
    judged = []
    for n, a, b, twin in evidence.pairs()[1:]:
        mine, theirs = a.states.whole, b.states.whole
        noisy = twin.states.whole if twin is not None else {}
        for name, state in mine.items():
            uncertain = name.rpartition("/")[0] in evidence.undetermined
            if state.count == 1 or name not in theirs or uncertain or not state.norm:
                continue
            noise = state.distance(noisy[name]) / state.norm if name in noisy else None
            apart = state.distance(theirs[name]) / state.norm
            floor = 10 * evidence.floors.gradient
            where = f"{name}, step {n + 1}"
            judged.append(judge(apart, floor=floor, twin=noise, where=where))
    if not judged:
        return None
    wrong = [each for each in judged if not each.ok]
    says = f"{len(wrong)} of {len(judged)} differ: {listed([each.where for each in wrong])}"
    says = says if wrong else f"{plural(len(judged), 'state')} loaded after some steps"
    hint = "optimizer states are lost or changed when a checkpoint is loaded"
    return asked.judge(worst(judged), says, hint, ok=not wrong, details=beyond(wrong))


_SAME_STATE = 1e-6


def _differing(before: Any, after: Any) -> dict[tuple[str, str, str], list[str]]:
    """Settings that both sides have with different values, with the parameters concerned."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for name, mine in sorted(before.items()):
        theirs = after.get(name, {})
        for setting, x in mine.items():
            # A setting of one side only is bookkeeping (a scheduler's initial_lr); what it does to
            # the others is seen in them.
            if setting in theirs and not _equal(x, theirs[setting]):
                found.setdefault((setting, str(x), str(theirs[setting])), []).append(name)
    return found


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, list) and isinstance(y, list):
        return len(x) == len(y) and all(_equal(a, b) for a, b in zip(x, y, strict=True))
    if isinstance(x, int | float) and isinstance(y, int | float):
        return gap(float(x), float(y)) <= 1e-9
    return bool(x == y)
