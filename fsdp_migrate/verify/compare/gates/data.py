"""Do both sides see the same things, in the same mode, with the same settings?"""

from __future__ import annotations

from typing import Any

from fsdp_migrate.verify.compare.coverage import NothingShared, listed, pair
from fsdp_migrate.verify.compare.envelope import gap
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Status, plural
from fsdp_migrate.verify.compare.recording import Mode


def same_inputs(evidence: Evidence) -> Gate:
    """The same data enters the model on every rank, at every step."""
    key, title = "inputs", "inputs"
    seen = 0
    for n, a, b, _ in evidence.pairs():
        for what in ("inputs", "batches"):
            for rank, (x, y) in enumerate(zip(getattr(a, what), getattr(b, what), strict=True)):
                seen += len(x)
                if x != y:
                    entering = "the model" if what == "inputs" else "the training loop"
                    says = f"step {n + 1}, rank {rank}: other data enters {entering}"
                    hint = "sampler, shuffling or seeding of the data differs"
                    return Gate(key=key, title=title, status=Status.FAIL, says=says, hint=hint)
    if not seen:
        says = "no tensor was seen entering the model or leaving a DataLoader"
        return Gate(key=key, title=title, status=Status.NOTE, says=says)
    return Gate(key=key, title=title, status=Status.PASS, says=f"{seen} fingerprints, all equal")


def same_modes(evidence: Evidence) -> Gate:
    """The same modules are in training mode whenever the model is trained."""
    key, title = "mode", "training mode"
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
                    return Gate(key=key, title=title, status=Status.FAIL, says=says, hint=hint)
    if not seen:
        says = "no forward of a sharded model was seen"
        return Gate(key=key, title=title, status=Status.NOTE, says=says)
    says = f"the same modules in {seen} forwards"
    return Gate(key=key, title=title, status=Status.PASS, says=says)


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
    key, title = "random", "random numbers"
    for n, a, b, _ in evidence.pairs():
        for rank, (x, y) in enumerate(zip(a.random, b.random, strict=True)):
            if x != y:
                says = f"step {n + 1}, rank {rank}: the generator is in another state"
                hint = "seeding, or something that draws random numbers, was added, lost or moved"
                return Gate(key=key, title=title, status=Status.NOTE, says=says, hint=hint)
    return Gate(key=key, title=title, status=Status.PASS, says="same state at every step")


def same_settings(evidence: Evidence) -> Gate:
    """The same optimizers with the same hyperparameters for every parameter, at every step."""
    key, title = "settings", "optimizer settings"
    before, after = evidence.before, evidence.after
    # Optimizers that step inside backward come one per parameter, and how many a rank has depends
    # on how parameters are cut; their kind is compared parameter by parameter, below.
    kinds = [[o.kind for o in side.optimizers if not o.inside] for side in (before, after)]
    if kinds[0] != kinds[1]:
        says = f"{listed(kinds[0])} before, {listed(kinds[1]) or 'none'} after"
        return Gate(key=key, title=title, status=Status.FAIL, says=says)
    paired = pair(dict.fromkeys(before.owned()), dict.fromkeys(after.owned()))
    if isinstance(paired, NothingShared):
        return Gate(key=key, title=title, status=Status.FAIL, says=f"optimizer: {paired}")
    if not paired.complete:
        side = "before" if paired.only_before else "after"
        names = sorted(paired.only_before or paired.only_after)
        says = f"only {side} in the optimizer: {listed(names)}"
        return Gate(key=key, title=title, status=Status.FAIL, says=says)
    for n, a, b, _ in evidence.pairs():
        differing = _differing(before.settings(a), after.settings(b))
        if differing:
            (setting, x, y), names = max(differing.items(), key=lambda item: len(item[1]))
            says = (
                f"step {n + 1}: {setting} {x} before, {y} after, for {len(names)} of "
                f"{plural(len(paired.both), 'parameter')}: {listed(names)}"
            )
            hint = "parameter groups, learning rate or schedule differ"
            return Gate(key=key, title=title, status=Status.FAIL, says=says, hint=hint)
    what = listed(kinds[0]) or "optimizers inside backward"
    says = f"{what}, same for {plural(len(paired.both), 'parameter')} at every step"
    return Gate(key=key, title=title, status=Status.PASS, says=says)


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
