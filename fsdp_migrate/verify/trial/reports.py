"""What the two versions report, and the files that they write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.reported import MIXED, Comparison, Streams, compare, results
from fsdp_migrate.verify.events import Role
from fsdp_migrate.verify.inject.config import Noise, Precision
from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.launch.launcher import LOG, rank_logs
from fsdp_migrate.verify.launch.scratch import find_written
from fsdp_migrate.verify.plan import Plan
from fsdp_migrate.verify.trial.bench import Bench
from fsdp_migrate.verify.trial.pair import Pair

_SHAKEN = 0.05
"""Relative size of the noise that moves every result of training."""

_MOST_BYTES = 4_000_000


def compare_reported(bench: Bench, first: Pair) -> Gate | None:
    """The numbers that both report; in float32 where the program was computed so as well.

    None where no twin is wanted, without which a result cannot be told from a time.

    Raises:
        Settled: the twin was trained for this, and failed.
    """
    asked = Question("reported", "reported numbers")
    if not bench.plan.twin:
        return None
    found = _compared(bench, first)
    if found.apart:
        first.add_twin_of_numbers(bench)
        found = _compared(bench, first)
    apart = found.apart
    if apart:
        tried = _tried_again(bench, first)
        if tried is None:
            says = f"{apart[0]}: whether it is a result of training could not be found out"
            return asked.note(says)
        apart = results(apart, *tried)
    if apart:
        says = str(apart[0]) + (f", and {len(apart) - 1} more" if len(apart) > 1 else "")
        hint = "what is reported is taken on one rank, not reduced, or taken at another moment"
        return asked.fails(says, hint, details=tuple(str(each) for each in apart[1:6]))
    aside = []
    if found.chance:
        aside.append(f"{plural(found.chance, 'kind')} of numbers not reproducible in the original")
    if found.apart:
        aside.append(f"{plural(len(found.apart), 'number')} that no weight changes")
    if not found.compared:
        return asked.note("none, or none that is reproducible") if found.chance else None
    says = f"{plural(found.compared, 'number')} reported alike"
    details = (f"not compared: {', '.join(aside)}",) if aside else ()
    return asked.passes(says, measured=found.largest, details=details)


def _compared(bench: Bench, first: Pair) -> Comparison:
    """The numbers of both sides, beside the twin's where it was trained."""
    suffix = _suffix(first)
    names = {role: f"{role.value}{first.setting.label}{suffix}" for role in Role}
    if first.evidence.drawn is not None and not suffix:  # this run took over the original's weights
        names[Role.AFTER] += "-same-start"
    if first.numbers.twin is None:
        names[Role.TWIN] = names[Role.BEFORE]
    before, after, twin = (
        _streams(bench.plan, bench.endings[names[role]], role)
        for role in (Role.BEFORE, Role.AFTER, Role.TWIN)
    )
    return compare(before, after, twin)


def _suffix(first: Pair) -> str:
    """What the names of the jobs end in whose numbers are compared."""
    return f"-{first.full.precision.value}" if first.full is not None else ""


def _tried_again(bench: Bench, first: Pair) -> tuple[Streams, Streams] | None:
    """What the original reports with shaken weights, and the migrated program in another run just
    like its first; None when one of them does not run."""
    suffix = _suffix(first)
    precision = first.full.precision if first.full is not None else Precision.NATIVE
    before = f"{Role.BEFORE.value}{first.setting.label}{suffix}"
    start = str(bench.endings[before].folder) if first.evidence.drawn is not None else None
    found = []
    for role, kind, noise, taken_over in (
        (Role.BEFORE, "-shaken", Noise(amplitude=_SHAKEN, seed=2), None),
        (Role.AFTER, "-repeated", None, start),
    ):
        job = first.setting.job(
            role, f"{suffix}{kind}", noise=noise, precision=precision, start=taken_over
        )
        ending = bench.train(job)
        if ending.end is not End.FINISHED:
            return None
        found.append(_streams(bench.plan, ending, role))
    return found[0], found[1]


def _streams(plan: Plan, ending: Ending, role: Role) -> Streams:
    """Everything that a run said, by where it said it."""
    found: dict[str, str] = {}
    ranks = rank_logs(ending.logs)
    for rank, logs in ranks.items():
        for name, path in logs.items():
            found[f"rank {rank}, {name}"] = _text(path) or ""
    if not ranks:  # the program makes its ranks itself
        found[MIXED] = _text(ending.logs / LOG) or ""
    for path in sorted(ending.folder.glob("rank-*.jsonl")):
        found[f"{path.stem.replace('-', ' ')}, reported"] = "\n".join(_handed_over(path))
    tree = ending.tree
    source = plan.after if role is Role.AFTER else plan.before
    if tree is not None:
        for name in find_written(tree, source):
            text = _text(tree / name) if (tree / name).is_file() else None
            if text is not None:
                found[name] = text
    return found


def _handed_over(path: Path) -> Iterator[str]:
    """A line for each number that a rank handed to a library that reports."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('{"t":"reported"'):
                for name, value in json.loads(line)["values"].items():
                    yield f"{name} {value!r}"


def _text(path: Path) -> str | None:
    """What is in a text file; None for any other, and for a very large one."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        # Not by universal newlines: a bar that is drawn anew is a line with carriage returns.
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError):
        return None
    return None if "\0" in text else text
