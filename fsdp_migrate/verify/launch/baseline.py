"""Keep the recordings of the original and its twin, so that they need not be trained again.

A recording is found again by everything that went into it: the files of the tree, the command, the
interpreter's torch, and this package's own recorder. Files outside the tree (shared data, absolute
paths, downloads) are not part of that, so keeping is off unless a folder is given.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from fsdp_migrate.verify.launch.ending import End, Ending
from fsdp_migrate.verify.launch.job import Job
from fsdp_migrate.verify.launch.scratch import find_written, input_files
from fsdp_migrate.verify.plan import Plan

_PACKAGE = Path(__file__).resolve().parents[1]
_MOST = 64
_MOST_BYTES = 1 << 26
"""Of a file that a run wrote; larger ones are not kept."""
_KEPT = "taken from the cache, not trained again"


@functools.cache
def torch_version(python: str) -> str | None:
    """The version of torch that ``python`` would import, without importing it; None if none."""
    # The first place that -c looks for modules in is the working directory.
    code = "import sys; sys.path[:] = filter(None, sys.path); import importlib.metadata as m; "
    code += "print(m.version('torch'))"
    try:
        found = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def key(plan: Plan, job: Job) -> str:
    """A name for the recording, the same whenever it would come out the same."""
    tree = plan.after if job.migrated else plan.before
    digest = hashlib.sha256()
    facts = {
        "script": plan.script,
        "args": job.args,
        "nproc": job.nproc,
        "max_steps": plan.max_steps if job.steps is None else job.steps,
        "grow_after": plan.grow_after if job.steps is None else None,
        "to_the_end": [job.to_the_end, job.last],
        "again": job.again,
        "seed": plan.seed,
        "env": sorted(_environment(plan).items()),
        "workdir": plan.workdir,
        "python": plan.python,
        "torch": torch_version(plan.python),
        "noise": asdict(job.noise) if job.noise else None,
        "precision": job.precision.value,
        "launcher": plan.launcher,
        "device": plan.device,
        "asked": plan.asked if job.observed else {},
    }
    digest.update(json.dumps(facts, sort_keys=True).encode())
    for folder in filter(None, (tree, plan.files)):
        for path, place in input_files(folder):
            _add(digest, path, place)
    for place in sorted(_PACKAGE.glob("*/**/*.py")):
        if place.relative_to(_PACKAGE).parts[0] in ("capture", "inject", "simulate"):
            _add(digest, place.name, place)
    return digest.hexdigest()[:32]


# What a terminal, a login or the shell's last command sets, and no training program reads.
_OF_THE_SESSION = re.compile(
    r"PWD|OLDPWD|SHLVL|_|TERM.*|COLUMNS|LINES|WINDOW.*|DISPLAY|SSH_.*|XDG_.*|DBUS_.*|LS_COLORS|"
    r"COLORTERM|GPG_.*|INVOCATION_ID|JOURNAL_STREAM|LESS.*|PS1|PROMPT.*|TMUX.*|STY|PYTEST_.*|TMPDIR"
)


def _environment(plan: Plan) -> dict[str, str]:
    """The variables that the program sees."""
    given = {**os.environ, **plan.env}
    return {name: value for name, value in given.items() if not _OF_THE_SESSION.fullmatch(name)}


def keepable(plan: Plan, job: Job) -> bool:
    """Whether a recording of the job may be kept: only numbers of the original are, and nothing
    that depends on files of another run or whose own files are needed afterwards."""
    needed = plan.resume is not None
    return not (needed or job.migrated or job.timing or job.files or job.start)


def _add(digest: hashlib._Hash, name: str, place: Path) -> None:
    digest.update(f"\0{name}\0".encode())
    with contextlib.suppress(OSError):
        digest.update(hashlib.sha256(place.read_bytes()).digest())


def find(cache: Path, name: str) -> Ending | None:
    """The kept ending of that name, if there is one."""
    place = cache / name
    try:
        facts = json.loads((place / "outcome.json").read_text(encoding="utf-8"))
        os.utime(place)  # used again: among the last to be forgotten
        return Ending(
            end=End.FINISHED,
            folder=place / "records",
            logs=place / "logs",
            tree=place / "written",
            seconds=float(facts["seconds"]),
            slowest_gap=float(facts["slowest_gap"]),
            notes=(*facts["notes"], _KEPT),
            simulated=bool(facts["simulated"]),
            launcher=str(facts["launcher"]),
            status=int(facts["status"]),
        )
    except (OSError, ValueError, KeyError):
        return None


def keep(cache: Path, name: str, ending: Ending, source: Path) -> None:
    """Keep a finished run of the tree ``source`` under that name, with the files that it wrote.
    Failing to is no failure of the verification."""
    if ending.end is not End.FINISHED or (cache / name).exists():
        return
    partial = cache / f"{name}.{uuid.uuid4().hex[:8]}"
    with contextlib.suppress(OSError), _removed_on_error(partial):
        (partial / "records").mkdir(parents=True)
        for place in ending.folder.glob("rank-*"):
            shutil.copy2(place, partial / "records")
        shutil.copytree(ending.logs, partial / "logs")
        _keep_written(ending, source, partial / "written")
        facts = {
            "seconds": ending.seconds,
            "slowest_gap": ending.slowest_gap,
            "notes": list(ending.notes),
            "simulated": ending.simulated,
            "status": ending.status,
            "launcher": ending.launcher,
        }
        (partial / "outcome.json").write_text(json.dumps(facts), encoding="utf-8")
        # In one go: another process may be looking for the same recording.
        os.rename(partial, cache / name)
        _forget_old(cache)


def _keep_written(ending: Ending, source: Path, target: Path) -> None:
    """Keep what the run wrote into its copy of ``source``, but for what is very large."""
    target.mkdir()
    if ending.tree is None:
        return
    for path in find_written(ending.tree, source):
        place, kept = ending.tree / path, target / path
        kept.parent.mkdir(parents=True, exist_ok=True)
        if place.is_dir():
            shutil.copytree(place, kept)
        elif place.stat().st_size <= _MOST_BYTES:
            shutil.copy2(place, kept)


def _forget_old(cache: Path) -> None:
    """Remove the recordings that have not been made or used for longest, beyond a few dozen."""
    kept = sorted((p for p in cache.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for place in kept[:-_MOST]:
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def _removed_on_error(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
