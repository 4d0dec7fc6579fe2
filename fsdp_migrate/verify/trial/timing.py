"""Step times and peak memory of both versions, from runs in which nothing else is recorded."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from fsdp_migrate.verify.compare.gate import Gate, Question
from fsdp_migrate.verify.events import Role
from fsdp_migrate.verify.launch.ending import End
from fsdp_migrate.verify.trial.bench import Bench
from fsdp_migrate.verify.trial.pair import Pair


def measure_times(bench: Bench, first: Pair) -> Gate:
    """How long a step takes and how much memory it needs, before and after. Never a failure: a
    busy machine is no defect of a program."""
    asked = Question("timing", "time and memory")
    if bench.runner.simulate:
        return asked.note("not measured: a simulation says nothing of them")
    found = []
    for role in (Role.BEFORE, Role.AFTER):
        ending = bench.train(first.setting.job(role, "-timed", timing=True))
        if ending.end is not End.FINISHED:
            return asked.note(f"not measured: {ending.says}")
        found.append(_read(ending.folder))
    (seconds, memory), (other, others) = found
    where = "process memory" if first.evidence.before.device == "cpu" else "device memory"
    says = (
        f"{1000 * seconds:.1f} ms a step before, {1000 * other:.1f} ms after; "
        f"peak {where} {memory / 2**20:,.0f} MiB before, {others / 2**20:,.0f} MiB after"
    )
    return asked.note(says)


def _read(folder: Path) -> tuple[float, int]:
    """Median time of a step of the slowest rank, without the first; and the largest memory."""
    seconds, memory = [], []
    for path in folder.glob("rank-*.jsonl"):
        lines = path.read_text(encoding="utf-8").splitlines()
        events = [json.loads(line) for line in lines if line.startswith('{"t":"timed"')]
        seconds.append(statistics.median(event["seconds"] for event in events[1:]))
        memory.append(max(int(event["memory"]) for event in events))
    return max(seconds), max(memory)
