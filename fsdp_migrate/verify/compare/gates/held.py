"""What the program's own variables hold: schedules, scalers, samplers; averages of the weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from fsdp_migrate.verify.compare.coverage import listed
from fsdp_migrate.verify.compare.envelope import Judged, beyond, gap, judge, worst
from fsdp_migrate.verify.compare.evidence import Evidence
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.recording import Held, Part, Recording

_FLOOR = 1e-5

_OF_SAMPLERS = (".epoch", "epochs told to samplers")

Parts = tuple[Part | None, ...]


def same_samplers(evidence: Evidence) -> Gate | None:
    """Samplers are told the same epochs, and are in the same ones. None where there are none."""
    return _same_facts(evidence, Question("samplers", "epochs of samplers"), samplers=True)


def same_schedules(evidence: Evidence) -> Gate | None:
    """Schedules and gradient scalers are at the same point after every step. None where there are
    none."""
    return _same_facts(evidence, Question("schedules", "schedules and scalers"), samplers=False)


def _same_facts(evidence: Evidence, asked: Question, *, samplers: bool) -> Gate | None:
    compared: set[str] = set()
    for n, a, b in _paired(evidence.before, evidence.after):
        twin = evidence.twin.held[n] if evidence.twin and n < len(evidence.twin.held) else None
        for rank, (mine, theirs) in enumerate(zip(a.facts, b.facts, strict=True)):
            for path in sorted(mine.keys() & theirs.keys()):
                if path.endswith(_OF_SAMPLERS) != samplers:
                    continue
                if twin is not None and twin.facts[rank].get(path) != mine[path]:
                    continue  # it follows rounding: the scale after an overflow
                if mine[path] != theirs[path]:
                    says = f"step {a.number + 1}, rank {rank}: {path} {mine[path]} before, "
                    hint = "a call of step, update or set_epoch was lost, added or moved"
                    return asked.fails(f"{says}{theirs[path]} after", hint, step=a.number + 1)
                if mine[path] != []:
                    compared.add(path)
    if not compared:
        return None
    return asked.passes(f"{listed(sorted(compared))}, equal after every step")


def same_averages(evidence: Evidence) -> Gate | None:
    """Tensors that the program keeps beside the parameters and names like them. None where it keeps
    none.

    Whole on every rank or in parts, however they are cut: they have to be the same together.
    """
    asked = Question("held", "weights kept besides")
    judged: list[Judged] = []
    paths: set[str] = set()
    cut: list[str] = []
    noise: dict[str, float] = {}
    for n, a, b in _paired(evidence.before, evidence.after):
        twin = evidence.twin.held[n] if evidence.twin and n < len(evidence.twin.held) else None
        for path, name, mine, theirs in _shared(a, b):
            if any(name.endswith(each) for each in evidence.undetermined):
                continue
            key = f"{path}/{name}"
            paths.add(path)
            if _is_cut(evidence.before, name, mine, theirs):
                cut.append(key)
            other = twin.groups.get(path, {}).get(name) if twin is not None else None
            noise[key] = max(noise.get(key, 0.0), _apart(mine, other) if other else 0.0)
            known = noise[key] if evidence.twin is not None else None
            floor = max(_FLOOR, evidence.floors.gradient)
            where = f"{key}, step {a.number + 1}"
            judged.append(judge(_apart(mine, theirs), floor=floor, twin=known, where=where))
    still = [path for path in sorted(paths) if _moves(evidence.before, path)]
    still = [path for path in still if not _moves(evidence.after, path)]
    if still:
        says = f"{listed(still)}: never updated, as it was before the migration"
        return asked.fails(says, "an average that no step updates")
    if not judged:
        return None
    if cut and all(each.ok for each in judged):
        says = (
            f"averages in {listed(sorted(set(cut)))} were whole on every rank, and are local shards"
        )
        return asked.void(
            says, "plain tensors: what reads them does not put them together by itself"
        )
    wrong = [each for each in judged if not each.ok]
    says = f"{listed(sorted(paths))}: {plural(len(judged), 'value')}"
    shown = worst(judged)
    step = None
    if wrong:
        shown = wrong[0]
        step = int(shown.where.rpartition(" ")[2])
        says = f"first difference in {shown.where}"
    hint = "an average is updated otherwise, or from other tensors: from shards, from a single rank"
    return asked.judge(shown, says, hint, ok=not wrong, step=step, details=beyond(wrong))


def _paired(before: Recording, after: Recording) -> Iterator[tuple[int, Held, Held]]:
    for n, (a, b) in enumerate(zip(before.held, after.held, strict=False)):
        if a.number == b.number:
            yield n, a, b


def _shared(a: Held, b: Held) -> Iterator[tuple[str, str, Parts, Parts]]:
    """What both hold, but for what the original reads no more: that is no state of its training."""
    for path in a.groups.keys() & b.groups.keys():
        if ".".join(path.split("[")[0].split(".")[:2]) in a.unread:
            continue
        for name in a.groups[path].keys() & b.groups[path].keys():
            yield path, name, a.groups[path][name], b.groups[path][name]


def _apart(mine: Parts, theirs: Parts) -> float:
    """Relative distance; by sums where the two are cut in ways that cannot be put together."""
    a, b = (
        [part for part in side if part is not None and part[2].count] for side in (mine, theirs)
    )
    if not a or not b:
        return 0.0 if not a and not b else math.inf
    if {part[:2] for part in a} == {part[:2] for part in b} and len({part[:2] for part in a}) == 1:
        # The same whole on both sides: rank by rank, since ranks may differ on purpose.
        pairs = zip(a, b, strict=False)
        return max(x[2].distance(y[2]) / x[2].norm if x[2].norm else 0.0 for x, y in pairs)
    return min(
        max(gap(x[0], y[0], scale=math.sqrt(abs(x[1]) * max(x[2], 1.0))), gap(x[1], y[1]))
        for x in _totals(a)
        for y in _totals(b)
    )


def _is_cut(before: Recording, name: str, mine: Parts, theirs: Parts) -> bool:
    """Whether what was the whole of a parameter is now a tensor of another shape."""
    shapes = {p.shape for known, p in before.parameters.items() if f".{known}".endswith(f".{name}")}
    kept = [{part[0] for part in side if part is not None} for side in (mine, theirs)]
    return bool(kept[1]) and kept[0] <= shapes and bool(kept[0]) and not kept[1] <= shapes


def _totals(parts: list[Part]) -> list[tuple[float, float, float]]:
    """Sum, sum of squares and number of the elements: of all parts, and of those that differ, since
    equal ones may be copies."""
    different = {(part[2].count, part[2].total, part[2].squares): part[2] for part in parts}
    return [
        (
            math.fsum(sketch.total for sketch in sketches),
            math.fsum(sketch.squares for sketch in sketches),
            float(sum(sketch.count for sketch in sketches)),
        )
        for sketches in ([part[2] for part in parts], list(different.values()))
    ]


def _moves(recording: Recording, path: str) -> bool:
    """Whether anything of a group changes between any two steps."""
    seen = [held.groups[path] for held in recording.held if path in held.groups]
    return any(a != b for a, b in itertools.pairwise(seen))
