"""The ``verify`` command: two trees or git revisions, or one tree and its rewritten copy."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate import git
from fsdp_migrate.cli import config, console, session, trust
from fsdp_migrate.cli.commands import BAD, GOOD, SEE
from fsdp_migrate.discovery import project_paths, walk
from fsdp_migrate.discovery.project_paths import PathProblem
from fsdp_migrate.errors import ConfigError, InputError
from fsdp_migrate.rewriting import write
from fsdp_migrate.shown import path as shown_path

if TYPE_CHECKING:
    from fsdp_migrate.verify.entries import Entries
    from fsdp_migrate.verify.plan import Plan
    from fsdp_migrate.verify.report.model import Report

_STYLES = {"PASS": "green", "FAIL": "bold red", "VOID": "yellow", "UNDECIDED": "bold yellow"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the command line says, in its own words."""

    script: str | None
    args: Sequence[str] = ()
    before: str | None = None
    after: str | None = None
    nproc: str | None = None
    steps: int | None = None
    timeout: float = 120.0
    seed: int | None = None
    device: str = "auto"
    precision: str = "both"
    launcher: str = "auto"
    python: str | None = None
    twin: bool = True
    resume: str | None = None
    timing: bool = False
    cache: bool = False
    env: Sequence[str] = ()
    share: Sequence[str] = ()
    keep: Path | None = None
    format_: str = "text"
    outputs: Sequence[Path] = ()
    quiet: bool = False
    trust_rules: bool = False


class _Said(Exception):
    """The command cannot be carried out, and why was said."""


def command(asked: Asked) -> int:
    """Verify and show the verdict; the exit code."""
    from fsdp_migrate.verify.plan import PlanError

    with ExitStack() as stack:
        try:
            formats = _formats(asked)
            plan, shown = _plan(asked, stack)
            report = _verify(plan, shown)
        except (InputError, PlanError) as error:
            console.problem(str(error))
            return BAD
        except _Said:
            return BAD
        except KeyboardInterrupt:
            console.note("interrupted: nothing was decided; the trees are untouched")
            return BAD
        for name, path in formats:
            text = _rendered(report, name)
            if path is None:
                _show(text, name, quiet=asked.quiet)
                continue
            try:
                project_paths.check_output(path)
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                console.problem(f"{path}: cannot be written: {error.strerror or error}")
                return BAD
    if report.exit_code == GOOD and "notes" in shown:
        console.note("note: exit code 1, for rules of the project's own were not loaded")
        return SEE
    return report.exit_code


# --- what is asked -------------------------------------------------------------------------------


def _formats(asked: Asked) -> list[tuple[str, Path | None]]:
    """Formats to render and where to, the screen being None."""
    from fsdp_migrate.verify.report import RENDERERS, SUFFIXES

    if asked.format_ not in RENDERERS:
        raise ConfigError(f"--format must be one of {', '.join(RENDERERS)}, not {asked.format_!r}")
    found: list[tuple[str, Path | None]] = [(asked.format_, None)]
    for path in asked.outputs:
        if path.suffix not in SUFFIXES:
            raise ConfigError(f"--output {path}: the name must end in one of {', '.join(SUFFIXES)}")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--output {path}: {path.parent} is not a directory")
        found.append((SUFFIXES[path.suffix], path))
    return found


def _plan(asked: Asked, stack: ExitStack) -> tuple[Plan, dict[str, Any]]:
    """The plan, and how to call its trees on the screen."""
    from fsdp_migrate.verify.entries import DRIVER
    from fsdp_migrate.verify.plan import Plan

    entries = _entries() if asked.script is None else None
    ranks, steps = asked.nproc, asked.steps
    if entries is not None:
        ranks = ranks or (str(entries.nproc) if entries.nproc else None)
        steps = steps or entries.steps
    nproc, *worlds = _worlds(ranks or "2")
    given = {side: getattr(asked, side) for side in ("before", "after")}
    trees = {side: Path(name) for side, name in given.items() if name and Path(name).is_dir()}
    revisions = {side: name for side, name in given.items() if name and side not in trees}
    home = trees.get("before") or (trees.get("after") if revisions else None)
    if entries is None:
        assert asked.script is not None
        tree, script, workdir = _locate(asked.script, home)
    else:
        tree = home.absolute() if home is not None else config.project_root(Path.cwd())
        script, workdir = DRIVER, entries.path
    shown: dict[str, Any] = {}
    for side, revision in revisions.items():
        trees[side] = _checked_out(revision, tree, _scratch(stack) / side, side, asked.share)
        shown[side] = f"{tree} at {revision}"
    if revisions and len(trees) == 1:
        # A revision is compared with what the working tree holds now.
        trees["before" if "after" in trees else "after"] = tree
    trees.setdefault("before", tree)
    if "after" not in trees:
        trees["after"] = _scratch(stack) / trees["before"].name
        missing = _rewritten(trees["before"].absolute(), trees["after"], asked.trust_rules)
        if missing:
            shown["notes"] = (missing,)
        shown["after"] = "the same, rewritten in a scratch copy"
    settings: dict[str, Any] = {} if asked.seed is None else {"seed": asked.seed}
    if entries is not None:
        settings |= {"files": _scratch(stack), "variants": entries.variants}
        entries.write(settings["files"])
        shown["program"] = f"{entries.model}, sharded by {entries.shard}"
    plan = Plan(
        **settings,
        before=trees["before"].absolute(),
        after=trees["after"].absolute(),
        script=script,
        args=tuple(asked.args),
        nproc=nproc,
        worlds=tuple(worlds),
        max_steps=10 if steps is None else steps,
        timeout=asked.timeout,
        env=_environment(asked.env),
        workdir=workdir,
        share=tuple(asked.share),
        keep=asked.keep,
        cache=_cache() if asked.cache else None,
        twin=asked.twin,
        timing=asked.timing,
        resume=_words(asked.resume) if asked.resume is not None else None,
        launcher=asked.launcher,
        device=asked.device,
        precision=asked.precision,
        python=asked.python or sys.executable,
    )
    return plan, shown


def _entries() -> Entries:
    """What the project of the working directory names in the place of a script."""
    from fsdp_migrate.verify.entries import TABLE, Entries, EntryError

    root = config.project_root(Path.cwd())
    table = config.verify_table(root)
    path = config.shown(root / "pyproject.toml")
    if not table:
        raise ConfigError(f"give a SCRIPT, or name functions in {TABLE} of {path}")
    try:
        return Entries.read(table)
    except EntryError as error:
        raise ConfigError(f"{path}: {error}") from None


def _worlds(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ConfigError(f"--nproc must be a number, or several as in 1,2,4; not {text!r}")
    return list(dict.fromkeys(int(word) for word in text.split(",")))


def _words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--resume-check {text!r} cannot be read: {error}") from None


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--env must be NAME=VALUE, not {pair!r}")
        found[name] = value
    return found


# --- trees ---------------------------------------------------------------------------------------


def _scratch(stack: ExitStack) -> Path:
    """A new directory that is gone when the command ends."""
    folder = Path(tempfile.mkdtemp(prefix="fsdp-migrate-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _locate(script: str, home: Path | None) -> tuple[Path, str, str]:
    """The tree of the program, the script in it, and the directory it is run from, relative to it.

    Raises:
        PathProblem: there is no such script.
    """
    here = Path.cwd()
    if home is not None:
        return home.absolute(), script, "."
    if script.startswith("module:"):
        return config.project_root(here), script, "."
    path = Path(script).absolute()
    if not path.is_file():
        raise PathProblem(f"{script}: no such script")
    tree = config.project_root(path)
    workdir = here if here.is_relative_to(tree) else tree
    return tree, path.relative_to(tree).as_posix(), workdir.relative_to(tree).as_posix()


def _checked_out(revision: str, tree: Path, target: Path, side: str, share: Sequence[str]) -> Path:
    """The files that git has of ``tree`` at ``revision``, in ``target``.

    What is shared is data that git does not have: it comes from the working tree.
    """
    root = project_paths.git_root(tree)
    if root is None:
        raise PathProblem(
            f"--{side} {revision}: is no directory, and {tree} is in no git repository"
        )
    inside = tree.relative_to(root).as_posix()
    try:
        entries = git.files(root, revision, inside)
    except git.GitError as error:
        raise PathProblem(
            f"--{side} {revision}: is neither a directory nor a git revision with "
            f"{inside} in it ({error})"
        ) from None
    left_out = _put(entries, target)
    if left_out:
        console.note(
            f"note: links out of the tree at {revision} are left out: {', '.join(left_out)}"
        )
    for path in share:
        place = target / path
        if not place.exists() and (tree / path).exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to((tree / path).resolve())
    return target


def _put(entries: Sequence[git.Entry], target: Path) -> list[str]:
    """Write files of git into ``target``; the links that would lead out of it, which are not made.

    Raises:
        PathProblem: a name leads out, as no name that git itself writes does.
    """
    target.mkdir(parents=True)
    links = [entry for entry in entries if entry.is_link]
    # Links come last, so that nothing is written through one.
    for entry in (*(entry for entry in entries if not entry.is_link), *links):
        place = target / entry.path
        if not {"", ".", "..", ".git"}.isdisjoint(entry.path.split("/")):
            raise PathProblem(f"{shown_path(entry.path)}: is no name for a file in git")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            if entry.is_link:
                place.symlink_to(os.fsdecode(entry.contents))
            else:
                place.write_bytes(entry.contents)
                place.chmod(0o755 if entry.mode == "100755" else 0o644)
        except (OSError, ValueError) as error:
            raise PathProblem(f"{shown_path(entry.path)}: {error}") from None
    real = os.path.realpath(target)
    leading_out = [
        link.path
        for link in links
        if not Path(os.path.realpath(target / link.path)).is_relative_to(real)
        or os.path.isabs(os.readlink(target / link.path))
    ]
    for path in leading_out:
        (target / path).unlink()
    return [shown_path(path) for path in leading_out]


def _rewritten(tree: Path, copy: Path, trust_rules: bool) -> str:
    """Make a copy of ``tree`` with its FSDP1 rewritten; what to tell if rules of its own were not
    loaded.

    Raises:
        InputError: there is nothing to rewrite, or the configuration is wrong.
        _Said: it could not be made, and the process that should have made it said why.
    """
    skipped = shutil.ignore_patterns(*walk.SKIPPED, "*.pyc")
    shutil.copytree(tree, copy, symlinks=True, ignore=skipped, ignore_dangling_symlinks=True)
    # Rules of the project's own run in a process apart, and have no part in the verdict.
    code = trust.command(tree, trust_rules, lambda: _rewrite_copy(tree, copy, trust_rules))
    if code:
        raise _Said
    word = trust.word(tree, config.rule_paths(tree), asked=trust_rules)
    return word.note if word.missing else ""


def _rewrite_copy(tree: Path, copy: Path, trust_rules: bool) -> int:
    """Rewrite the FSDP1 in a copy of ``tree``.

    Raises:
        PathProblem: there is nothing to rewrite.
    """
    run = session.run([copy], trust_rules=trust_rules, home=tree)
    for problem in run.result.problems:
        # Of the user's file, not of its copy. It need not be one that the program uses.
        place = f"{_original(problem.display, copy, tree)}:{problem.line or 1}"
        console.problem(f"{place}: {problem.message}")
    if not run.result.changes:
        raise PathProblem(
            f"{shown_path(str(tree))}: nothing to rewrite, so there is nothing to compare; give "
            "--after or --before"
        )
    write.write(copy, run.result.changes, state=copy.with_name(f"{copy.name}.journal"))
    left = sum(d.outcome.value == "left" for d in run.result.decisions)
    review = sum(d.outcome.value == "review" for d in run.result.decisions)
    console.note(
        f"rewrote a scratch copy: {len(run.result.decisions)} sites, {review} for review, "
        f"{left} left" + (" (see fsdp-migrate check)" if left else "")
    )
    return GOOD


def _original(display: str, copy: Path, tree: Path) -> str:
    path = Path(display).absolute()
    return config.shown(tree / path.relative_to(copy) if path.is_relative_to(copy) else path)


def _cache() -> Path:
    from fsdp_migrate.verify.launch.baseline import default_folder

    return default_folder()


# --- the answer ----------------------------------------------------------------------------------


def _verify(plan: Plan, shown: dict[str, Any]) -> Report:
    from fsdp_migrate.verify.report.progress import Progress
    from fsdp_migrate.verify.run import verify

    with Progress(plan.max_steps) as progress:
        report = verify(plan, on_event=progress)
    notes = (*report.notes, *shown.get("notes", ()))
    return dataclasses.replace(report, **{**shown, "notes": notes})


def _rendered(report: Report, name: str) -> str:
    from fsdp_migrate.verify.report import RENDERERS

    return RENDERERS[name](report)


def _show(text: str, name: str, *, quiet: bool) -> None:
    if quiet and name == "text":
        text = text[text.rindex("\nVERDICT") + 1 :]
    if name != "text":
        console.out(text)
        return
    console.words(text, _STYLES)
