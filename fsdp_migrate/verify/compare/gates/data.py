"""Do both sides start from the same place and see the same things?"""

from __future__ import annotations

from typing import Any

from fsdp_migrate.verify.compare.coverage import NothingShared, listed, pair
from fsdp_migrate.verify.compare.envelope import gap
from fsdp_migrate.verify.compare.evidence import Evidence, distances
from fsdp_migrate.verify.compare.gate import Gate, Status, plural
from fsdp_migrate.verify.compare.recording import Recording

_SAME = 1e-7
"""Relative difference of initial values that is no more than one rounding in fp32."""

_SAME_BUFFER = 1e-5


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


def same_start(evidence: Evidence) -> Gate:
    """The same initial parameters and buffers; copies on several ranks agree."""
    key, title = "start", "initial weights"
    before, after = evidence.before, evidence.after
    measured = distances(before.init.params, after.init.params)
    if isinstance(measured, NothingShared):
        return Gate(key=key, title=title, status=Status.FAIL, says=f"parameters: {measured}")
    relative = {name: measured.relative(name) for name in measured.by_name}
    worst = max(relative, key=lambda name: relative[name])
    apart = [name for name, value in relative.items() if not value <= _SAME]
    hint = "weights are initialised, loaded or broadcast differently (sync_module_states)"
    if apart:
        says = f"{len(apart)} of {plural(len(relative), 'parameter')} differ: {listed(apart)}"
        return Gate(
            key=key,
            title=title,
            status=Status.FAIL,
            says=says,
            measured=relative[worst],
            allowed=_SAME,
            hint=hint,
        )
    split = _divergent(after)
    if split and not _divergent(before):
        says = f"ranks hold different copies of {listed(split)}"
        return Gate(key=key, title=title, status=Status.FAIL, says=says, hint=hint)
    for rank, (x, y) in enumerate(zip(before.init.buffers, after.init.buffers, strict=True)):
        paired = pair(x, y)
        if isinstance(paired, NothingShared):
            if x or y:
                return Gate(key=key, title=title, status=Status.FAIL, says=f"buffers: {paired}")
            continue
        for name, (a, b) in paired.both.items():
            # Buffers may have been cast already; that is judged at the end.
            apart_by = max(gap(a[2], b[2], scale=abs(a[3]) ** 0.5), gap(a[3], b[3]))
            if apart_by > _SAME_BUFFER and a[0] == b[0]:
                says = f"buffer {name} differs on rank {rank}"
                return Gate(
                    key=key,
                    title=title,
                    status=Status.FAIL,
                    says=says,
                    measured=apart_by,
                    allowed=_SAME_BUFFER,
                    hint=hint,
                )
    details = (f"ranks hold different copies of {listed(split)}, as in the original",) * bool(split)
    return Gate(
        key=key,
        title=title,
        status=Status.PASS,
        says=f"{plural(len(relative), 'parameter')} and their buffers, equal",
        measured=relative[worst],
        allowed=_SAME,
        details=details,
    )


def _divergent(recording: Recording) -> list[str]:
    params = recording.init.params
    return [name for name in params.by_name if params.divergence(name) > _SAME]


def same_settings(evidence: Evidence) -> Gate:
    """The same optimizers with the same hyperparameters for every parameter, at every step."""
    key, title = "settings", "optimizer settings"
    before, after = evidence.before, evidence.after
    kinds = [[o.kind for o in side.optimizers] for side in (before, after)]
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
    says = f"{listed(kinds[0])}, same for {plural(len(paired.both), 'parameter')} at every step"
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
