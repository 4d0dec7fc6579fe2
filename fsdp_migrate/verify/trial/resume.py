"""Checkpoints: the original saves, both versions resume; and both files are read by plain torch."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from fsdp_migrate.verify import inject
from fsdp_migrate.verify.compare.coverage import NothingShared, listed
from fsdp_migrate.verify.compare.evidence import distances
from fsdp_migrate.verify.compare.gate import Gate, Question, plural
from fsdp_migrate.verify.compare.recording import Recording
from fsdp_migrate.verify.launch.scratch import input_files
from fsdp_migrate.verify.report.model import Verdict
from fsdp_migrate.verify.trial.bench import Bench, Settled
from fsdp_migrate.verify.trial.pair import Pair, Setting, compare_versions

RESUMED = "resumed"
"""The part of the gates that look at the resumed runs."""

_SLACK = 1e-3
"""Share of a tensor's largest value by which saved values may differ in float32: how far training
drifts apart is judged by the gates of the run itself."""
_COARSE_SLACK = 0.1
_METADATA = ".metadata"  # what makes a folder one checkpoint of torch.distributed.checkpoint


def find_written(tree: Path, source: Path) -> list[str]:
    """What a run wrote into its scratch copy of ``source``: files, and folders that are one
    checkpoint, relative to the tree."""
    known = {name: place.stat().st_mtime_ns for name, place in input_files(source)}
    found: dict[str, None] = {}
    for name, place in input_files(tree):
        if known.get(name) == place.stat().st_mtime_ns:
            continue
        folder = next(
            (p for p in Path(name).parents if p != Path() and (tree / p / _METADATA).is_file()),
            None,
        )
        found[folder.as_posix() if folder is not None else name] = None
    return list(found)


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


def compare_saved(bench: Bench, first: Pair) -> Gate:
    """What the migrated program saved is what the original saved, to a plain process."""
    asked = Question("saved", "saved files")
    plan = bench.plan
    trees = [bench.endings[first.setting.job_name(side)].tree for side in ("before", "after")]
    assert all(tree is not None for tree in trees)
    names = find_written(Path(str(trees[0])), plan.before)
    command = [plan.python, str(inject.SAVED), *(str(tree) for tree in trees)]
    done = subprocess.run(
        command, input=json.dumps(names), capture_output=True, text=True, check=False
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(answers) != len(names):
        lines = done.stderr.strip().splitlines() or ["it ended without a word"]
        return asked.void(f"could not be compared: {lines[-1]}")
    checkpoints = [answer for answer in answers if answer["kind"] == "checkpoint"]
    if not checkpoints:
        return asked.note(f"none that torch can load: {listed(names)}")
    slack = _COARSE_SLACK if first.evidence.before.coarse else _SLACK
    problems = [text for answer in checkpoints for text in _problems(answer, slack)]
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
        details=tuple(
            f"{answer['path']} holds {listed(answer['added'])} in addition"
            for answer in checkpoints
            if answer["added"]
        ),
    )


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
