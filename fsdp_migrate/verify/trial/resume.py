"""Checkpoints: the original saves, both versions resume; and both files are read by plain torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.compare.coverage import NothingShared, listed
from fsdp_migrate.verify.compare.evidence import distances
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.events import Role
from fsdp_migrate.verify.launch.scratch import find_written
from fsdp_migrate.verify.report.model import Verdict
from fsdp_migrate.verify.trial.bench import Bench, Settled
from fsdp_migrate.verify.trial.pair import Pair, Setting, compare_versions

RESUMED = "resumed"
"""The part of the gates that look at the resumed runs."""

_SLACK = 1e-3
"""Share of a tensor's largest value by which saved values may differ in float32: how far training
drifts apart is judged by the gates of the run itself."""
_COARSE_SLACK = 0.1


def compare_resumed(bench: Bench, first: Pair) -> Pair:
    """Let both versions resume from what the original saved in the run of ``first``.

    Raises:
        Settled: nothing was saved, a resumed run failed, or resuming did nothing.
    """
    plan = bench.plan
    assert plan.resume is not None
    tree = bench.endings[first.setting.job_name("before")].tree
    names = find_written(tree, plan.before) if tree is not None else []
    if tree is None or not names:
        says = (
            f"the original wrote no file within {plural(plan.max_steps, 'step')}: there is nothing "
            "to resume from (more --steps?)"
        )
        raise Settled(Verdict.INCONCLUSIVE, says)
    folder = bench.room / "saved"
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (tree / name).is_dir() else shutil.copy2
        copy(tree / name, target)
    setting = Setting(
        label=f"{first.setting.label}-resumed",
        nproc=first.setting.nproc,
        args=(*first.setting.args, *plan.resume),
        files=folder,
    )
    try:
        pair = compare_versions(bench, setting)
    except Settled as settled:
        raise dataclasses.replace(settled, says=f"{RESUMED}: {settled.says}") from None
    if _same_weights(first.evidence.before, pair.evidence.before):
        says = (
            f"with {' '.join(plan.resume)} the original starts from the weights of a fresh run: it "
            "does not resume"
        )
        raise Settled(Verdict.INCONCLUSIVE, says)
    return pair


def _same_weights(a: Recording, b: Recording) -> bool:
    apart = distances(a.init.params, b.init.params)
    return not isinstance(apart, NothingShared) and apart.together == 0.0


def compare_saved(bench: Bench, first: Pair) -> Gate | None:
    """What the migrated program wrote is what the original wrote, to a plain process. None where
    neither wrote anything.

    Raises:
        Settled: the twin was trained for this, and failed.
    """
    asked = Question("saved", "saved files")
    plan = bench.plan
    written = _written(bench, first)
    if plan.twin and set(written.get(Role.BEFORE, ())) - set(written.get(Role.AFTER, ())):
        first.add_twin(bench)
        written = _written(bench, first)
    trees = _trees(bench, first)
    names, theirs = written.get(Role.BEFORE, []), written.get(Role.AFTER, [])
    if not names and not theirs:
        return None
    # What the twin did not write either is named after the time or the process.
    lasting = [name for name in names if name in written.get(Role.TWIN, names)]
    missing = [name for name in lasting if name not in theirs]
    if missing and Role.TWIN in written:
        says = f"{listed(missing)}: not written after the migration"
        return asked.fails(says, "a save is left out, moved, or fails and is not noticed")
    if not names:
        return asked.note(f"only after the migration: {listed(theirs)}")
    sides = [str(trees[Role.BEFORE]), str(trees[Role.AFTER])]
    world = first.evidence.before.world
    asks, answered = (bench.room / f"saved-{kind}.json" for kind in ("paths", "answers"))
    asks.write_text(json.dumps(names), encoding="utf-8")
    words = [*sides, str(world), str(_slack(first)), str(asks), str(answered)]
    trouble = bench.runner.run_ours(inject.SAVED, words)
    if trouble is not None:
        return asked.void(f"could not be compared: {trouble}")
    answers = json.loads(answered.read_text(encoding="utf-8"))
    checkpoints = [answer for answer in answers if answer["kind"] == "checkpoint"]
    if not checkpoints:
        return asked.note(f"none that torch or NumPy can load: {listed(names)}")
    slack = _slack(first)
    last = first.evidence.before.after[-1].buffers[0]
    # FSDP1 saves buffers in the dtype that they had before buffer_dtype, FSDP2 as they are.
    cast = [
        (answer["path"], name, says)
        for answer in checkpoints
        for name, says in answer.get("dtypes", [])
    ]
    kept = [says for _, name, says in cast if name.rpartition("/")[2] in last]
    problems = [text for answer in checkpoints for text in _problems(answer, slack)]
    problems += [f"{path}: {says}" for path, _, says in cast if says not in kept]
    if problems:
        return asked.fails(
            problems[0],
            hint="the state is gathered or named differently before it is saved",
            details=tuple(problems[1:6]),
        )
    largest = max((d / size for a in checkpoints for _, d, size in a["apart"] if size), default=0.0)
    count = sum(len(answer["apart"]) for answer in checkpoints)
    paths = [answer["path"] for answer in checkpoints]
    return asked.passes(
        f"{listed(paths)}: {plural(count, 'value')}, read by plain torch",
        measured=largest,
        allowed=slack,
        details=(
            *(
                f"{answer['path']} holds {listed(answer['added'])} in addition"
                for answer in checkpoints
                if answer["added"]
            ),
            *(f"a buffer as it is computed with: {says}" for says in kept),
            *(f"only after the migration: {name}" for name in theirs if name not in names),
        ),
    )


def _jobs(bench: Bench, first: Pair) -> dict[Role, str]:
    """The names of the jobs that were compared, by role."""
    names = {role: first.setting.job_name(role.value) for role in Role}
    if first.evidence.drawn is not None:
        names[Role.AFTER] += "-same-start"
    return {role: name for role, name in names.items() if name in bench.endings}


def _trees(bench: Bench, first: Pair) -> dict[Role, Path]:
    """Where the jobs that were compared ran, by role."""
    trees = {role: bench.endings[name].tree for role, name in _jobs(bench, first).items()}
    return {role: tree for role, tree in trees.items() if tree is not None}


def _written(bench: Bench, first: Pair) -> dict[Role, list[str]]:
    """The files that each of these jobs wrote."""
    return {
        role: find_written(tree, bench.plan.after if role is Role.AFTER else bench.plan.before)
        for role, tree in _trees(bench, first).items()
    }


def _slack(first: Pair) -> float:
    return _COARSE_SLACK if first.evidence.before.coarse else _SLACK


def _problems(answer: dict[str, Any], slack: float) -> list[str]:
    path = answer["path"]
    if answer["problem"]:
        return [f"{path} {answer['problem']}"]
    found = []
    if answer["parts"]:
        found.append(f"{path} holds one rank's part of {listed(answer['parts'])}")
    if answer["missing"]:
        found.append(f"{path} lacks {listed(answer['missing'])}")
    found += [f"{path}: {text}" for text in answer["shapes"]]
    wrong = [name for name, d, size in answer["apart"] if not d <= slack * size]
    if wrong:
        found.append(f"{path}: other values of {listed(wrong)}")
    return found
