"""Every program of the fixtures, migrated by ``migrate`` and held against its bars.

``python -m tests.attempts.everything`` runs ``migrate`` and one ``verify`` of each, prints what
came of it and renews the table in ``docs/loop.md``; it exits with 1 where a bar is missed. It goes
on where it was stopped (``tests/attempts/records.py``). With words after it, only programs whose
names hold one of them; ``by_hand`` are those that a person migrated as well. ``--sample SEED`` is
one call of each fixture of which no call is kept, drawn with the seed, those on few ranks first;
``--alone`` is without the ``verify`` after it.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from shutil import copytree, ignore_patterns

from tests import measure as counting
from tests.attempts import records
from tests.attempts.records import Record, row
from tests.verify.pairs import FIXTURES, PACKAGED, PAIRS, Pair, of

TABLE, BY_HAND = "everything", "by_hand/"
LINES, ATTEMPTS, TIMES = 1.5, 2.0, 3.0

# What a program that was migrated by hand needs beside its name.
_OPTIONS = {
    "loop": of("", "--kind", "plain"),
    "ordering": of("", "--kind", "early"),
    "packaged": of("", "8", **PACKAGED),
    "policies": of("", "--policy", "classes"),
    "rank0": of("", "--sync", "1"),
    "spawned": of("", "--port", "29611"),
}
# Those for which a newer torch has a shorter form; each is tried for both targets.
_NEWER = {"programs/conditional": "2.13"}


def programs() -> dict[str, Pair]:
    """The programs by their names: first those that were migrated by hand, each as it is called
    without further arguments, then all that ``verify`` is tried on."""
    found = {}
    for hand in sorted(counting.BY_HAND.glob("*/after")):
        name = hand.parent.name
        needed = _OPTIONS.get(name, of(""))
        place = counting.version_before(name)
        place = place.parent if place.name == "before" else place
        program = place.relative_to(FIXTURES).as_posix()
        found[f"{BY_HAND}{name}"] = of(program, *needed.args, **needed.plan)
    for pair in PAIRS:
        found[str(pair)] = pair
        if pair.program in _NEWER:
            found[f"{pair} for torch {_NEWER[pair.program]}"] = pair
    return found


PROGRAMS = programs()


def sample(seed: int, kept: Collection[str]) -> list[str]:
    """One call of each fixture of which no call is kept."""
    known = {PROGRAMS[name].program for name in kept}
    calls: dict[str, list[str]] = {}
    for name, pair in PROGRAMS.items():
        if pair.program not in known and not name.startswith(BY_HAND):
            calls.setdefault(pair.program, []).append(name)
    drawn = [random.Random(f"{seed} {fixture}").choice(calls[fixture]) for fixture in calls]
    return sorted(drawn, key=lambda name: (PROGRAMS[name].nproc, name.startswith("programs/")))


def try_out(name: str, *, alone: bool = False) -> Record:
    """Run ``migrate`` on one program, and one ``verify`` of it unless it is ``alone``."""
    pair = PROGRAMS[name]
    home = FIXTURES / pair.program
    before = home / "before" if (home / "before").is_dir() else home
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made).resolve()
        trees = [scratch / side for side in ("before", "after")]
        for tree in trees:
            copytree(before, tree, ignore=ignore_patterns("__pycache__", "notes.md"))
            (tree / "pyproject.toml").touch()
        answer = scratch / "answer.json"
        # Those that a person migrated are trained as far as a user's are who asks for nothing.
        steps = 0 if name.startswith(BY_HAND) else pair.steps
        options = ["--allow-dirty", "-o", str(answer)]
        _, newer, target = name.partition(" for torch ")
        options += ["--target-torch", target] if newer else []
        code, *spent = _run(pair, steps, trees[1], scratch, "migrate", *options)
        if not answer.is_file():
            raise RuntimeError(f"migrate gave no answer for {name}, and exit code {code}")
        said = json.loads(answer.read_text(encoding="utf-8"))
        hand = _lines_by_hand(name, before, scratch / "counted")
        lines = counting.changed_lines(*trees)
        one: list[float] = []
        if not alone:
            _, *one = _run(pair, steps, trees[0], scratch, "verify")
    return {
        "code": code,
        "same_training": said["same_training"],
        "title": said["title"],
        "left": [each["what"] for each in said["left"]],
        "forms": [each["what"] for each in said["other_forms"]],
        "stopped": said["stopped"],
        "attempts": [_attempt(attempt) for attempt in said["attempts"]],
        "hand": hand,
        "lines": lines,
        "seconds": spent,
        "verify": one,
    }


def _run(
    pair: Pair, steps: int, tree: Path, scratch: Path, command: str, *options: str
) -> tuple[int, float, float]:
    """The exit code of a command on the program in ``tree``, and the seconds that it took: on the
    clock, and of all processors together."""
    script = pair.plan.get("script", "train.py")
    words = [sys.executable, "-m", "fsdp_migrate", command, script, "-q", *options]
    words += ["--nproc", str(pair.nproc)]
    if steps:
        words += ["--steps", str(steps)]
    if "seed" in pair.plan:
        words += ["--seed", str(pair.plan["seed"])]
    environment = {
        **os.environ,
        "FSDP_MIGRATE_STATE": str(scratch / "state"),
        "PYTHONPATH": str(FIXTURES.parent),
    }
    began = time.monotonic()
    process = subprocess.Popen(
        [*words, "--", *pair.args],
        cwd=tree / pair.plan.get("workdir", "."),
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    clock = time.monotonic() - began
    return process.returncode, round(clock, 1), round(used.ru_utime + used.ru_stime, 1)


def _lines_by_hand(name: str, before: Path, scratch: Path) -> int | None:
    hand = FIXTURES / name / "after"
    if not name.startswith(BY_HAND):
        return None
    trees = [counting.copied(tree, scratch / side) for tree, side in ((before, "b"), (hand, "h"))]
    return counting.changed_lines(*trees)


def _attempt(attempt: Record) -> Record:
    report = attempt["reports"][-1] if attempt["reports"] else {}
    said = f"{report['verdict']}: {report['says']}" if report else "the original"
    return {"trained": bool(report), "why": attempt["why"], "said": said}


# -- telling --------------------------------------------------------------------------------------

HEAD = (
    row("program", "answer", "attempts", "lines by hand", "lines", "ratio", "s", "s of verify", "")
    + "\n|---|---|--:|--:|--:|--:|--:|--:|---|"
)


def attempts(record: Record) -> int:
    return sum(attempt["trained"] for attempt in record["attempts"])


def ratio(record: Record) -> float | None:
    """The lines by those of the hand, where all was migrated that the hand did."""
    whole = record["hand"] and record["same_training"] and not record["left"]
    return record["lines"] / record["hand"] if whole else None


def times(record: Record) -> float | None:
    """How many times one ``verify`` it took, in seconds of processors: other work on the machine
    does not count in these. None if there was none."""
    return float(record["seconds"][1] / record["verify"][1]) if record["verify"] else None


def missed(record: Record) -> Iterator[str]:
    """The bars that one program misses."""
    if not record["same_training"]:
        yield "not migrated"
    elif record["left"]:
        yield f"left: {', '.join(record['left'])}"
    lines = ratio(record)
    if lines is not None and lines > LINES:
        yield f"{lines:.2f} times the hand's lines"
    longer = times(record)
    if longer is not None and longer > TIMES:
        yield f"{longer:.1f} times one verify"


def line(name: str, record: Record) -> str:
    lines = ratio(record)
    return row(
        name,
        record["title"],
        attempts(record),
        record["hand"] or "",
        record["lines"],
        "" if lines is None else f"{lines:.2f}",
        f"{record['seconds'][0]:.0f}",
        f"{record['verify'][0]:.0f}" if record["verify"] else "",
        "; ".join((*missed(record), *record.get("forms", ()))),
    )


def summary(found: Sequence[Record]) -> list[str]:
    same = sum(record["same_training"] for record in found)
    mean = sum(map(attempts, found)) / len(found)
    ratios = [each for each in map(ratio, found) if each is not None]
    lines = [
        f"same training: {same} of {len(found)} programs",
        f"attempts, on average: {mean:.2f} (should be {ATTEMPTS:g} or less)",
    ]
    if both := [record for record in found if record["verify"]]:
        longest = max(times(record) or 0 for record in both)
        clock = sum(r["seconds"][0] for r in both) / sum(r["verify"][0] for r in both)
        lines.append(
            f"times one verify, in seconds of processors, of {len(both)} programs: at most "
            f"{longest:.1f} (should be {TIMES:g} or less); on the clock, all together: {clock:.1f}"
        )
    if ratios:
        above = sum(each > LINES for each in ratios)
        lines.append(f"above {LINES:g} times the hand's lines: {above} of {len(ratios)}")
    return [f"- {each}" for each in lines]


def main(arguments: Sequence[str]) -> int:
    asked = records.asked("tests.attempts.everything", __doc__, arguments, sampled=True)
    names = list(PROGRAMS)
    if asked.sample is not None:
        names = sample(asked.sample, records.kept(TABLE, names))
    names = records.chosen(names, asked.words)
    measure = functools.partial(try_out, alone=asked.alone)
    print(HEAD)
    for name, record in records.measured(TABLE, names, measure, again=asked.again):
        print(line(name, record), flush=True)
    found = records.kept(TABLE, list(PROGRAMS))
    rows = [line(*each) for each in found.items()]
    told = summary([*found.values()])
    print("\n".join(["", *told]))
    records.renew(TABLE, [HEAD, *rows, "", *told, "", records.revisions([*found.values()])])
    several = sum(map(attempts, found.values())) > ATTEMPTS * len(found)
    return int(several or any(True for record in found.values() for _ in missed(record)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
