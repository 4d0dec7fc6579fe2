"""Was the same thing recorded on both sides, completely?"""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_migrate.verify.compare.coverage import NothingShared, listed, pair
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.recording import Optimizer, Parameter, Recording

STILL_FSDP1 = "the migrated program never called fully_shard: its model is still FSDP1's"


def migrated_code_ran(evidence: Evidence) -> Gate:
    """The original trained an FSDP1 model, the migrated program sharded one with ``fully_shard``,
    and both ran the code of the trees that are judged."""
    asked = Question("ran", "code that ran")
    changed = evidence.changed
    for side, recording in (("before", evidence.before), ("after", evidence.after)):
        outside = [pair for pair in recording.from_outside if pair[0] in changed]
        if outside:
            (source, place), *more = outside
            others = f", and {plural(len(more), 'file')} more" if more else ""
            says = f"{side}: {source} came from {place}, which is not in the tree{others}"
            hint = "a copy is installed: uninstall it, or put the tree first: --env PYTHONPATH=src"
            return asked.void(says, hint)
    kinds = [{unit.kind for unit in side.units} for side in (evidence.before, evidence.after)]
    if "fsdp2" in kinds[0] and "fsdp1" not in kinds[0]:
        return asked.void("no model of the original is FSDP1's: this says nothing of a migration")
    if "fsdp1" in kinds[1] and "fsdp2" not in kinds[1]:
        return asked.void(STILL_FSDP1)
    if not kinds[0] and not kinds[1]:
        return asked.note("no model is sharded on either side: of FSDP this says nothing")
    ran = changed & evidence.after.imported
    if changed and evidence.after.imported and not ran:
        says = f"of {plural(len(changed), 'changed file')} the migrated program imported none"
        return asked.void(says, f"the change is in {listed(sorted(changed))}")
    says = (
        f"{len(ran)} of {plural(len(changed), 'changed file')}" if ran else "as it is in the trees"
    )
    return asked.passes(says)


def same_steps(evidence: Evidence) -> Gate:
    """Same number of optimizer steps, and of backward calls in each."""
    asked = Question("steps", "steps")
    before, after = evidence.before, evidence.after
    if before.world != after.world:
        return asked.fails(f"{before.world} ranks before, {after.world} after")
    for n, a, b, _ in evidence.pairs():
        for rank, (x, y) in enumerate(zip(a.losses, b.losses, strict=True)):
            if len(x) != len(y):
                says = (
                    f"step {n + 1}, rank {rank}: {plural(len(x), 'backward call')} before, "
                    f"{len(y)} after"
                )
                hint = "gradient accumulation differs, or steps were skipped by a gradient scaler"
                return asked.fails(says, hint)
    scaled = [any(step.scaled for step in side.steps) for side in (before, after)]
    if scaled[0] != scaled[1]:
        says = f"losses are scaled {'before' if scaled[0] else 'after'} only"
        hint = "the gradient scaler was lost or added: in float16 small gradients underflow"
        return asked.fails(says, hint)
    if len(before.steps) != len(after.steps):
        says = f"{plural(len(before.steps), 'optimizer step')} before, {len(after.steps)} after"
        goes_on = after.rest is not None and not after.rest.ended
        return asked.fails(f"{says}, which goes on" if goes_on else says)
    micro = len(before.steps[0].losses[0])
    each = f", {micro} backward calls each" if micro > 1 else ""
    says = f"{plural(len(before.steps), 'optimizer step')} on {plural(before.world, 'rank')}{each}"
    return asked.passes(says)


def recorded(evidence: Evidence) -> Gate:
    """Nothing failed while recording. A hole in the records voids a pass."""
    asked = Question("recorded", "recording")
    sides = {"before": evidence.before, "after": evidence.after}
    if evidence.twin is not None:
        sides["the twin"] = evidence.twin
    for side, recording in sides.items():
        for problem in (*recording.unsupported, *recording.errors):
            what = "not supported" if problem in recording.unsupported else "failed"
            return asked.void(f"recording {what} in {side}: {problem}")
        if _gathers_missing(recording):
            return asked.void(f"sharded parameters in {side}, but not one all-gather was seen")
    return asked.passes("complete on every rank")


def _gathers_missing(recording: Recording) -> bool:
    """Whether collectives went past the recorder: torch may have renamed them again."""
    sharded = any(
        p.kind != "plain" and p.trains and p.copies < recording.world
        for p in recording.parameters.values()
    )
    gathers = any(
        family == "all-gather"
        for step in recording.steps
        for rank in step.collectives
        for _, family, _ in rank
    )
    return sharded and recording.world > 1 and not gathers


def same_names(evidence: Evidence) -> Gate:
    """The same parameters by name and shape, and the same of them trainable."""
    asked = Question("names", "parameters")
    paired = pair(evidence.before.parameters, evidence.after.parameters)
    if isinstance(paired, NothingShared):
        return asked.fails(str(paired))
    if not paired.complete:
        parts = [
            f"only {side}: {listed(names)}"
            for side, names in (("before", paired.only_before), ("after", paired.only_after))
            if names
        ]
        return asked.fails("; ".join(parts))
    for what in ("shape", "dtype", "trains"):
        wrong = [n for n, (a, b) in paired.both.items() if getattr(a, what) != getattr(b, what)]
        if wrong:
            a, b = paired.both[wrong[0]]
            return asked.fails(_described(what, a, b) + f": {listed(wrong)}")
    trainable = len(evidence.before.trainable)
    return asked.passes(f"same {len(paired.both)} names and shapes, {trainable} trainable")


def _described(what: str, a: Parameter, b: Parameter) -> str:
    if what == "trains":
        return "trainable before, frozen after" if a.trains else "frozen before, trained after"
    return f"{what} {getattr(a, what)} before, {getattr(b, what)} after"


def optimizer_alive(evidence: Evidence) -> Gate:
    """Every parameter an optimizer holds belongs to a model.

    Otherwise the optimizer was built from objects that sharding has replaced: it trains nothing,
    and nothing raises.
    """
    asked = Question("optimizer-alive", "optimizer's parameters")
    free = 0
    before = {(o.number, o.since): o for o in evidence.before.optimizers_by_rank[0]}
    for optimizer in evidence.after.optimizers_by_rank[0]:
        if not optimizer.stale:
            continue
        original = before.get((optimizer.number, optimizer.since))
        if original is not None and sorted(original.stale) == sorted(optimizer.stale):
            if len(optimizer.stale) == optimizer.held:
                return asked.void(f"{_stale(optimizer)}; the original does not train them either")
            free += len(optimizer.stale)
            continue
        hint = "build the optimizer after the last fully_shard call"
        if optimizer.gathered:
            hint = "build the optimizer before the first forward, or reshard() every unit first"
        return asked.fails(_stale(optimizer), hint)
    held = sum(optimizer.held for optimizer in evidence.after.optimizers)
    if not evidence.after.owned():
        return asked.fails("the optimizer holds no parameter of any model")
    if free:  # a temperature kept outside of any module, for one
        says = f"{free} of {held} belong to no module, before and after, and are not compared"
        return asked.note(says)
    return asked.passes(f"all {held} belong to the model")


def _stale(optimizer: Optimizer) -> str:
    count = f"{len(optimizer.stale)} of {plural(optimizer.held, 'parameter')}"
    if optimizer.gathered:
        return (
            f"{optimizer.kind} was built between a forward and its backward: {count} that it holds "
            "are temporary and will never be updated"
        )
    return (
        f"{optimizer.kind} was built before fully_shard: {count} that it holds belong to no model, "
        "so it trains nothing with them"
    )


_PLACEMENT = Question("placement", "sharding")


def same_placement(evidence: Evidence) -> Gate:
    """What was sharded still is, and over as many ranks."""
    before, after = evidence.before, evidence.after
    wrong = misplaced(before.parameters, after.parameters)
    if wrong is not None:
        return wrong
    # Only where there are copies: FSDP1 and FSDP2 cut parameters at other places.
    if before.replicas != after.replicas and len(before.replicas) < before.world:
        says = f"copies on {_groups(before)} before, on {_groups(after)} after"
        hint = "the dimensions of the device mesh are swapped (replicate, then shard)"
        return _PLACEMENT.fails(says, hint)
    if before.world == 1:
        return _PLACEMENT.note("one rank: sharding itself is not tested")
    return _PLACEMENT.passes("every parameter is sharded as before")


def _groups(recording: Recording) -> str:
    groups = sorted(sorted(ranks) for ranks in recording.replicas)
    return "ranks " + " and ".join("+".join(map(str, ranks)) for ranks in groups)


def misplaced(before: Mapping[str, Parameter], after: Mapping[str, Parameter]) -> Gate | None:
    """The failed gate for parameters that are sharded otherwise; None when all are as before.

    Needs no complete recording: it also explains why a migrated program crashed.
    """
    outside, inside, copies = [], [], []
    for name, a in before.items():
        b = after.get(name)
        if b is None:
            continue
        if a.kind != "plain" and b.kind == "plain":
            outside.append(name)
        elif a.kind == "plain" and b.kind != "plain":
            inside.append(name)
        elif a.elements and abs(a.copies - b.copies) > 1e-9:
            copies.append(name)
    if outside:
        trained = [name for name in outside if after[name].trains] or outside
        says = f"{plural(len(outside), 'parameter')} in no fully_shard unit: {listed(trained)}"
        hint = (
            "their gradients are not reduced over ranks; is fully_shard(model) on the root missing?"
        )
        return _PLACEMENT.fails(says, hint)
    if inside:
        says = f"sharded now, but not managed by FSDP before: {listed(inside)}"
        hint = "parameters that FSDP1 ignored must stay out: fully_shard(..., ignored_params=...)"
        return _PLACEMENT.fails(says, hint)
    if copies:
        a, b = before[copies[0]], after[copies[0]]
        says = (
            f"{plural(len(copies), 'parameter')} held {b.copies:g} times over all ranks instead of "
            f"{a.copies:g}: {listed(copies)}"
        )
        hint = "the device mesh or its dimensions differ (shard, replicate)"
        return _PLACEMENT.fails(says, hint)
    return None


def gradients_present(evidence: Evidence) -> Gate:
    """The same parameters have gradients at every step."""
    asked = Question("gradients-present", "gradients present")
    some = 0
    for n, a, b, _ in evidence.pairs():
        paired = pair(a.gradients.whole, b.gradients.whole)
        if isinstance(paired, NothingShared):
            says = f"step {n + 1}: {paired}"
            if a.settings[0].keys() != b.settings[0].keys():
                says += ": another optimizer takes the step, whose parameters have none"
            elif evidence.before.settings(a).keys() != evidence.after.settings(b).keys():
                says += ": the optimizer that takes the step holds other parameters"
            return asked.fails(says)
        some = max(some, len(paired.both))
        for side, names in (("before", paired.only_before), ("after", paired.only_after)):
            if names:
                says = f"step {n + 1}: only {side} a gradient for {listed(names)}"
                hint = "gradient synchronisation left off, or parameters not part of the backward"
                return asked.fails(says, hint)
    return asked.passes(f"for the same {plural(some, 'parameter')} at every step")


def same_units(evidence: Evidence) -> Gate:
    """Parameters are gathered and reduced in the same dtypes, and the same ones together.

    Other groups in the same dtypes are the same training at another cost.
    """
    asked = Question("units", "units")
    before = {unit.names: unit for unit in evidence.before.units}
    after = {unit.names: unit for unit in evidence.after.units}
    if not before and not after:
        return asked.note("no model is sharded on either side: FSDP was not tried")
    theirs = {name: unit for unit in after.values() for name in unit.names}
    for unit in before.values():
        for name in sorted(unit.names & theirs.keys()):
            for what in ("param_dtype", "reduce_dtype"):
                x, y = getattr(unit, what), getattr(theirs[name], what)
                if x != y:
                    says = f"{what} of {unit.module or 'the root'}: {x} before, {y} after"
                    hint = "MixedPrecision and MixedPrecisionPolicy differ"
                    return asked.fails(says, hint)
    lost = [unit for names, unit in before.items() if names not in after]
    new = [unit for names, unit in after.items() if names not in before]
    if lost or new:
        says = f"{plural(len(before), 'unit')} before, {len(after)} after"
        details = tuple(
            f"only {side}: {unit.module or 'the root'} with {plural(len(unit.names), 'parameter')}"
            for side, units in (("before", lost), ("after", new))
            for unit in units[:3]
        )
        hint = "fully_shard is called on other modules than the auto-wrap policy chose"
        return asked.costs(says, details=details, hint=hint)
    return asked.passes(f"the same {plural(len(before), 'unit')}")
