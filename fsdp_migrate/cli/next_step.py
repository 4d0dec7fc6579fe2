"""The command that comes after a rewrite: what trains the program before and after."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from fsdp_migrate.cli import config
from fsdp_migrate.cli.session import Run
from fsdp_migrate.planning.outcome import Outcome

REVIEWED = "git diff"
PROGRAM = re.compile(rb"(?m)^if +__name__ *== *[\"']__main__[\"']")
SCRIPT = re.compile(  # which trains as it is read
    rb"(?m)^(?:(?:for|while) .*:|(?:\w+\.)*(?:main|train|fit|run|Fire)\()"
)
STEPS = re.compile(rb"\.backward\(|\.(?:fit|train|training_step|train_step|train_epoch)\(")
NO_PROGRAM = re.compile(r"test_.*|.*_test|conftest|setup|noxfile")
NAMED = re.compile(r"train|tun(?:e|ing)|fsdp", re.IGNORECASE)  # of several, what speaks of it
DEEPEST = 6  # imports of one another


def command(run: Run, paths: Sequence[Path]) -> str:
    """The command that trains before and after, with the program that is most likely meant, of the
    tree as it was committed; where there is none that can be started, what shows the changes, or
    what is left in ``paths``."""
    stays = all(d.outcome is Outcome.LEFT for d in run.result.decisions)
    only_mended = stays and any(hazard.is_mended for hazard in run.result.hazards)
    if only_mended or not any(path.suffix == ".py" for path in run.result.changes):
        return REVIEWED
    from fsdp_migrate.cli import pull_request

    revision = pull_request.revision(run.config.root)
    before = " --before HEAD" if revision else ""
    if config.verify_table(run.config.root):
        return f"fsdp-migrate verify{before}"
    program = _training_program(run)
    if program is not None:
        name = _started(Path(run.found.display(program)))
        return f"fsdp-migrate verify {shlex.quote(name)}{before}"
    return REVIEWED if revision else shlex.join(["fsdp-migrate", "check", *map(str, paths)])


def _training_program(run: Run) -> Path | None:
    """The program that shards a model and trains it: by itself, or with what it imports."""
    files = {p: run.before.get(p, data) for p, data in _files(run).items()}
    done = [d for d in run.result.decisions if d.outcome is not Outcome.LEFT]
    shard = {d.site.module.path for d in done if d.site.construct.is_constructor}
    changed = {path for path in run.changed if path.suffix == ".py"}
    near = _importing(shard or changed, files)
    started = [path for path in files if _is_started(path, files[path])]
    steps = {path for path in started if STEPS.search(files[path])}
    for wanted in (shard & steps, shard, near & steps, near, changed & steps, changed):
        programs = [path for path in started if path in wanted]
        if programs:
            return min(programs, key=lambda p: _rank(p, files[p]))
    return None


def _rank(path: Path, data: bytes) -> tuple[int, bool, int, str]:
    """Of several programs, what is called a training, and asks to be started, comes first."""
    words = len(set(NAMED.findall(path.stem.lower())))
    return -words, not PROGRAM.search(data), len(path.parts), str(path)


def _files(run: Run) -> dict[Path, bytes]:
    every = {**run.found.candidates, **run.found.others}
    return {path: data for path, data in every.items() if path.suffix == ".py"}


def _is_started(path: Path, data: bytes) -> bool:
    is_program = PROGRAM.search(data) or SCRIPT.search(data)
    return is_program is not None and not NO_PROGRAM.fullmatch(path.stem)


def _importing(paths: Iterable[Path], files: dict[Path, bytes]) -> set[Path]:
    """The files that import one of ``paths`` by its name, or what does."""
    found = set(paths)
    new = set(found)
    for _ in range(DEEPEST):
        names = {p.parent.name if p.name == "__init__.py" else p.stem for p in new}
        if not names:
            break
        words = b"|".join(re.escape(os.fsencode(name)) for name in sorted(names))
        statement = re.compile(rb"(?m)^[ \t]*(?:from|import)[ \t][^\n#]*\b(?:%s)\b" % words)
        new = {path for path, data in files.items() if path not in found and statement.search(data)}
        found |= new
    return found


def _started(shown: Path) -> str:
    """What `verify` starts: a package by its name, whose relative imports need one."""
    packages = list(shown.parents)[:-1]
    if shown.name != "__main__.py" or shown.is_absolute() or not packages:
        return str(shown)
    if not all((package / "__init__.py").is_file() for package in packages):
        return str(shown)
    return f"module:{'.'.join(shown.parent.parts)}"
