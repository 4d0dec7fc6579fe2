"""Do the ranks exchange the same things, and compute the same ones twice?"""

from __future__ import annotations

from collections import Counter

from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.recording import Recording, Step

_GATHER, _SCATTER, _REDUCE = "all-gather", "reduce-scatter", "all-reduce"

ROOT_GATHER = (
    "reshard_after_forward=True on the root gathers it once more in backward; FSDP1 never did"
)


EVALUATION_GATHER = (
    "after an evaluation FSDP2 may gather units once more in backward: the order of forwards by "
    "which it prefetches still holds the evaluation's"
)


def same_traffic(evidence: Evidence) -> Gate:
    """Forward and backward issue the same gathers and reductions, in the same dtypes.

    Another number of gathers is the same training at another cost; another number of reductions a
    unit is not, for gradients then add up elsewhere, unless more of them are meant. Gathers may
    exceed the original's by one per root and micro-batch: FSDP2 reshards the root when it is told
    to, FSDP1 does not. In a step that evaluates what is trained they may exceed it by one a unit as
    well; a teacher's units are never gathered in backward. Sizes differ by padding and are not
    compared. Clipping, evaluation and the program's own collectives are left out.
    """
    asked = Question("collectives", "collectives")
    before, after = evidence.before, evidence.after
    if before.world == 1:
        return asked.note("one rank: nothing is exchanged")
    expected: set[str] = set()
    cost: Gate | None = None
    # The first step holds set-up work of its own, unless it is the only one.
    pairs = evidence.pairs()[1:] or evidence.pairs()
    for n, a, b, _ in pairs:
        mine, theirs = _counts(a), _counts(b)
        for family in (_SCATTER, _GATHER, _REDUCE):
            here = {d: c for (f, d), c in mine.items() if f == family}
            there = {d: c for (f, d), c in theirs.items() if f == family}
            evaluated = family == _GATHER and b.evaluated > 0
            if set(here) != set(there) and not (evaluated and set(here) <= set(there)):
                says = f"step {n + 1}: {family} in {_dtypes(here)} before, {_dtypes(there)} after"
                hint = "the mixed-precision policy differs (param_dtype, reduce_dtype)"
                if not here or not there:
                    hint = "parameters are sharded or synchronised differently"
                return asked.fails(says, hint)
            x, y = sum(here.values()), sum(there.values())
            says = f"step {n + 1}: {x} {family} calls before, {y} after"
            if family != _GATHER:
                if _as_often_a_unit(x, y, evidence):
                    continue
                if not evidence.reduces_more or family == _REDUCE or y < x:
                    return asked.fails(says, hint=_hint(family, x, y))
                cost = cost or asked.costs(says, hint=_hint(family, x, y))
                continue
            spare = _roots(after) * len(a.losses[0])
            spare += len(_trained_units(after)) if evaluated else 0
            if not x <= y <= x + spare:
                cost = cost or asked.costs(says, hint=_hint(family, x, y))
            elif y > x:
                expected.add(EVALUATION_GATHER if evaluated else ROOT_GATHER)
    if cost is not None:
        return cost
    last = pairs[-1]
    totals: Counter[str] = Counter()
    for (family, _), count in _counts(last[2]).items():
        totals[family] += count
    what = ", ".join(plural(totals[f], f) for f in (_GATHER, _SCATTER, _REDUCE) if totals[f])
    says = f"{what or 'none'} a step"
    return asked.passes(says, expected=tuple(sorted(expected)))


def same_recomputation(evidence: Evidence) -> Gate | None:
    """Activation checkpointing computes as many regions again. None where there is none."""
    asked = Question("recomputation", "activations")
    regions = 0
    for n, a, b, _ in evidence.pairs():
        for rank, (x, y) in enumerate(zip(a.recomputed, b.recomputed, strict=True)):
            if x != y:
                says = (
                    f"step {n + 1}, rank {rank}: activation checkpointing computes "
                    f"{plural(x, 'region')} again before, {y} after"
                )
                hint = "activations are kept instead, which takes more memory"
                more = "more is computed twice, which takes more time"
                return asked.costs(says, hint=hint if y < x else more)
            regions += x
    return asked.passes(f"{plural(regions, 'region')} computed again") if regions else None


def _as_often_a_unit(x: int, y: int, evidence: Evidence) -> bool:
    """Whether ``x`` reductions before and ``y`` after are as many for each unit.

    Where the units are the same, that is whether they are as many. Other units are a cost of their
    own; of those only counts that are whole rounds over all units can tell.
    """
    mine, theirs = _trained_units(evidence.before), _trained_units(evidence.after)
    if mine == theirs or not mine or not theirs:
        return x == y
    whole_rounds = x % len(mine) == 0 and y % len(theirs) == 0
    return not whole_rounds or x // len(mine) == y // len(theirs)


def _trained_units(recording: Recording) -> set[frozenset[str]]:
    """The parameters of each unit that has gradients to reduce."""
    return {unit.names for unit in recording.units if unit.names & recording.trainable}


def _counts(step: Step) -> Counter[tuple[str, str]]:
    """(family, dtype) -> number in forward and backward, on rank 0."""
    counts: Counter[tuple[str, str]] = Counter()
    for (phase, family, dtype), (count, _) in step.collectives[0].items():
        if phase in ("forward", "backward"):
            counts[family, dtype] += count
    return counts


def _dtypes(counts: dict[str, int]) -> str:
    return " and ".join(sorted(counts)) or "none"


def _roots(recording: Recording) -> int:
    return max(1, len(recording.models))


def _hint(family: str, before: int, after: int) -> str:
    if family == _SCATTER and after > before:
        return "gradients are reduced at every backward: no_sync was lost"
    if family == _SCATTER:
        return "gradients are reduced less often: synchronisation is switched off somewhere"
    if family == _GATHER and after < before:
        return "parameters stay gathered after forward: reshard_after_forward=False, more memory"
    if family == _GATHER:
        return "parameters are gathered more often: more units, or resharded where FSDP1 did not"
    return "replication (HSDP, NO_SHARD) differs"
